import pytest

from detcli.commands.eval.classes import MappedBy, map_classes
from detcli.commands.eval.dataset import Category, Dataset, Form, Sample
from detcli.commands.eval.findings import Findings
from detcli.commands.eval.objects import Object, Objects
from detcli.errors import UsageError


def dataset(*names, named=True, boxes=()):
    objects = Objects.of(Object((0, 0, 1, 1), index) for index in boxes)
    categories = tuple(Category(10 + index, name) for index, name in enumerate(names))
    sample = Sample("a", None, 1, None, objects)
    return Dataset(Form.COCO, None, categories, named, [sample], relative=False)


def mapped(names, data):
    findings = Findings()
    mapping = map_classes(names, data, findings)
    return mapping, {one.kind: one.examples for one in findings.report()}


def test_by_name_in_any_order_and_case():
    mapping, found = mapped(("Bus", "person "), dataset("person", "bus"))
    assert (mapping.by, mapping.category_of) == (MappedBy.NAME, (1, 0))
    assert found == {}


def test_what_has_no_partner_is_told():
    data = dataset("person", "sofa", "cat", boxes=[1, 1, 2])
    mapping, found = mapped(("person", "couch"), data)
    assert mapping.category_of == (0, None)
    assert mapping.categories == (0,)
    assert found == {
        "category that the model does not know": ("sofa (2 boxes)", "cat (1 boxes)"),
        "class that the data does not know": ("couch",),
    }


def test_a_category_without_boxes_is_no_loss():
    assert mapped(("person",), dataset("person", "sofa", boxes=[0]))[1] == {}


@pytest.mark.parametrize(
    ("names", "named"), [(("class_0", "class_1"), True), (("red", "green"), False)]
)
def test_by_order_where_one_of_them_has_no_names(names, named):
    mapping, found = mapped(names, dataset("person", "bus", "cat", named=named, boxes=[2]))
    assert (mapping.by, mapping.category_of) == (MappedBy.ORDER, (0, 1))
    assert found == {"category that the model does not know": ("cat (1 boxes)",)}
    more, found = mapped((*names, "class_2", "class_3"), dataset("a", named=False))
    assert more.category_of == (0, None, None, None)
    assert len(found["class that the data does not know"]) == 3


def test_a_name_that_the_model_has_twice():
    mapping, _ = mapped(("red", "green", "Red"), dataset("red", "green"))
    assert mapping.category_of == (0, 1, 0)
    assert mapping.classes_of(0) == (0, 2)


def test_not_one_name_in_common():
    with pytest.raises(UsageError, match="not one name in common: red, green; a, b") as caught:
        mapped(("red", "green"), dataset("a", "b"))
    assert "--names" in caught.value.hint
