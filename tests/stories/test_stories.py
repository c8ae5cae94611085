"""Each story is what happens: its commands cause the lines below them, and no others."""

from pathlib import Path

import pytest

from tests.support.stories import replayed

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def test_there_are_stories():
    assert len(STORIES) >= 12


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_a_story_is_what_happens(story, request):
    text = story.read_text()
    found = replayed(text)
    if request.config.getoption("--rewrite"):
        story.write_text(found)
    assert found.splitlines() == text.splitlines() or request.config.getoption("--rewrite")


def test_a_word_that_is_no_command_is_named():
    with pytest.raises(ValueError, match="fly away: no such command"):
        replayed(
            "models: {m: {path: m, sla: {response_time: 1}}}\nworkers: [{cores: 1}]\n---\nfly away\n"
        )
