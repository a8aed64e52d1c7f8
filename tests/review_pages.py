"""What a review page in a browser shows, and the answers of a reviewer there."""

import json

BOX = (0.25, 0.25, 0.75, 0.5)


def labels(browser):
    """The lines of labels.jsonl that the page has now."""
    return [json.loads(line) for line in browser.run("return review.lines")]


def answers(browser):
    """The source and the answer of each line, in the order of answering."""
    return [(label["source"], label["animal"]) for label in labels(browser)]


def progress(browser):
    return browser.text("#progress")


def answer(browser, *keys):
    """Press keys, each when the images that it is about are shown."""
    for key in keys:
        wait_for_images(browser)
        browser.press(key)


def wait_for_images(browser):
    browser.wait(
        "return [...document.querySelectorAll('#stage .frame')]"
        ".every((frame) => frame.children.length)"
    )


def is_on(browser, action):
    """Whether the button of a view is pressed."""
    return browser.find(f"[data-action={action}]").get_attribute("aria-pressed") == "true"
