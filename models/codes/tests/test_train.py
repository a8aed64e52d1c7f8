import dataclasses

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")
pytest.importorskip("skimage", reason="scikit-image is not installed; it is in the extra `train`")
pytest.importorskip("sklearn", reason="scikit-learn is not installed; it is in the extra `train`")
pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra `train`")

from codes.assets import training_assets
from codes.data import Scenes, batches
from codes.export import export, folded
from codes.train import (
    CHECKPOINT_NAME,
    LOG_NAME,
    Settings,
    Trainer,
    has_bfloat16,
    lr_at,
    stages,
    train,
    train_in_parallel,
)

CPU = torch.device("cpu")
SHORT = Settings(
    steps=4,
    cycle_steps=2,
    lr_decay_steps=2,
    warmup_steps=2,
    batch_size=4,
    imgsz=96,
    four_from=0,
    one_from=0,
    large_steps=1,
    workers=0,
    checkpoint_every=2,
)


def sides_of(scenes, steps):
    """The size of the images of the first steps."""
    return [scenes.side(step) for step in range(steps)]


def state_of(learner):
    """What a network has learned, or an optimiser without its settings."""
    state = learner.state_dict()
    return state.get("state", state)


def test_a_resumed_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    stopped = train(dataclasses.replace(SHORT, stop_at=2), tmp_path, CPU)
    loaded = Trainer(SHORT, CPU)
    loaded.load(tmp_path / CHECKPOINT_NAME)
    assert loaded.step == stopped.step == 2
    for name in ("network", "average", "optimiser", "muon"):
        ours = state_of(getattr(loaded, name))
        theirs = state_of(getattr(stopped, name))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert len(theirs) > 1

    asked = []

    def spied(scenes, start, stop, workers):
        asked.append((start, stop))
        return batches(scenes, start, stop, workers)

    monkeypatch.setattr("codes.train.batches", spied)
    assert train(SHORT, tmp_path, CPU).step == 4
    assert asked == [(2, 4)]


def test_a_run_can_start_from_an_exported_file_and_resumes_without_it(tmp_path):
    first = train(SHORT, tmp_path / "first", CPU)
    file = tmp_path / "first.onnx"
    with pytest.warns() as _:  # the exporter of this torch still uses what its next version drops
        export(first.average, file, {})
    short = dataclasses.replace(SHORT, lr=0.0, stop_at=2, start=str(file))
    started = train(short, tmp_path / "second", CPU)
    unchanged = folded(started.average).state_dict()
    wanted = folded(first.average).state_dict()
    for name in ("one.box.0.2.weight", "one.score.2.4.bias"):
        torch.testing.assert_close(unchanged[name], wanted[name])
    file.unlink()
    resumed = train(dataclasses.replace(short, stop_at=0), tmp_path / "second", CPU)
    assert resumed.step == 4


def test_images_are_mosaics_of_nine_scenes_then_of_four_then_single_then_large():
    scenes = Scenes(0, training_assets(0), 16, stages(Settings()))
    sides = sides_of(scenes, 24000)
    assert sides[:8] == [288, 288, 384, 288, 384, 288, 480, 288]
    assert sides[2800:2808] == [384, 512, 320, 640, 384, 512, 320, 640]
    assert sides[5200:5208] == [320, 448, 640, 448, 384, 544, 320, 640]
    ends_of_cycles = sides[7700:8000] + sides[15700:16000] + sides[23700:]
    assert set(ends_of_cycles) == {640}
    assert sides[8000:8008] == sides[16000:16008] == sides[5200:5208]
    tiles = []
    hard = []
    for step in range(24000):
        stage = scenes.stage(step)
        tiles.append(stage.tiles)
        hard.append(stage.hard)
    assert tiles == [3] * 2800 + [2] * 2400 + [1] * 18800
    assert hard == [False] * 16000 + [True] * 8000


def test_training_changes_the_average_and_follows_the_weights(tmp_path):
    trainer = train(SHORT, tmp_path, CPU)
    saved = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=True)
    assert saved["step"] == 4
    weights = trainer.network.backbone.to8[0].conv.weight
    average = trainer.average.backbone.to8[0].conv.weight
    assert not torch.equal(weights, average)
    assert (weights - average).abs().max() < 0.05


def test_the_learning_rate_warms_up_stays_and_decays_and_rises_again():
    settings = Settings(
        steps=300, cycle_steps=100, warmup_steps=10, lr_decay_steps=40, lr=1.0, restart_lr=0.5
    )
    assert lr_at(0, settings) == pytest.approx(0.1)
    assert lr_at(9, settings) == lr_at(59, settings) == 1
    assert lr_at(80, settings) == pytest.approx(0.5)
    assert 0 < lr_at(99, settings) < 0.01
    assert 0 < lr_at(100, settings) < lr_at(105, settings) < lr_at(109, settings) < 0.5
    assert lr_at(150, settings) == pytest.approx(0.25)
    assert 0 < lr_at(199, settings) < 0.01
    assert lr_at(250, settings) == lr_at(150, settings)
    shorter = dataclasses.replace(settings, steps=220)
    assert lr_at(210, shorter) == pytest.approx(0.25)
    assert lr_at(219, shorter) < 0.01


def test_a_run_of_the_first_cycle_alone_ends_like_it():
    settings = dataclasses.replace(Settings(), steps=8000)
    for step in (0, 5000, 7999):
        assert lr_at(step, settings) == lr_at(step, Settings())
    scenes = Scenes(0, training_assets(0), 16, stages(settings))
    longer = Scenes(0, training_assets(0), 16, stages(Settings()))
    assert sides_of(scenes, 8000) == sides_of(longer, 8000)


def test_an_unfinished_checkpoint_is_ignored(tmp_path):
    train(dataclasses.replace(SHORT, stop_at=2), tmp_path, CPU)
    (tmp_path / "last.new").write_bytes(b"half")
    assert train(SHORT, tmp_path, CPU).step == 4


def test_the_log_of_a_resumed_run_has_each_step_once(tmp_path, monkeypatch):
    monkeypatch.setattr("codes.train.REPORT_EVERY", 1)
    train(dataclasses.replace(SHORT, stop_at=3), tmp_path, CPU)
    log = tmp_path / LOG_NAME
    log.write_text(log.read_text() + "4\t0.0\n")  # of a step after the last checkpoint
    train(SHORT, tmp_path, CPU)
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    rows = lines[1:]  # after the heading
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    for line in lines:
        assert len(line) == 8


@pytest.fixture
def one_thread():
    """As each training process has it: several threads round differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_processes_average_their_gradients(tmp_path):
    settings = dataclasses.replace(SHORT, batch_size=8, processes=2, steps=1)
    train_in_parallel(settings, tmp_path, CPU)
    saved = torch.load(tmp_path / CHECKPOINT_NAME, weights_only=True)
    assert saved["step"] == 1

    alone = dataclasses.replace(settings, processes=1)
    trainers = [Trainer(alone, CPU), Trainer(alone, CPU)]
    for rank, trainer in enumerate(trainers):
        scenes = Scenes(0, training_assets(0), 8, stages(alone), rank=rank, processes=2)
        trainer.backward(scenes[0])
    first = trainers[0].network
    second = trainers[1].network
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        ours.grad = (ours.grad + theirs.grad) / 2
    trainers[0].update()
    # Weights would show little more than the signs of gradients after the first step, and bfloat16
    # rounds each gradient differently.  A gradient of one process alone is far more than 5% off.
    learners = (("optimiser", "exp_avg"), ("muon", "momentum_buffer"))
    compared = 0
    for learner, moment in learners:
        ours, theirs = saved[learner]["state"], getattr(trainers[0], learner).state_dict()["state"]
        compared += len(ours)
        for number, state in theirs.items():
            apart = (ours[number][moment] - state[moment]).norm()
            assert apart <= 0.05 * state[moment].norm() + 1e-9, (learner, number)
    assert compared == len(list(first.parameters()))


def test_muon_updates_what_mixes_channels_and_adamw_everything_else():
    trainer = Trainer(SHORT, CPU)
    adamw_weights = []
    for group in trainer.optimiser.param_groups:
        adamw_weights += group["params"]
    muon_weights = list(trainer.matrices.values())
    optimised_ids = {id(weight) for weight in adamw_weights + muon_weights}
    assert optimised_ids == {id(weight) for weight in trainer.network.parameters()}
    assert len(optimised_ids) == len(adamw_weights) + len(muon_weights)
    for weight in muon_weights:
        assert weight.ndim == 4
        assert weight.shape[1] > 1
    for matrix, weight in trainer.matrices.items():
        matrix.add_(1)  # a view, so that the network learns what Muon does
        assert torch.equal(matrix, weight.detach().permute(0, 2, 3, 1).flatten(1))


@pytest.mark.parametrize(("has", "expected"), [("avx512_bf16", True), ("avx2", False)])
def test_bfloat16_is_used_only_where_it_is_fast(monkeypatch, has, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {has: True})
    assert has_bfloat16(CPU) == expected
