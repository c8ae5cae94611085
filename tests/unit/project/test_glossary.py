"""docs/glossary.md holds: none of the old words is left, and no class name stands twice."""

import ast
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

BANNED = (
    "allowance",
    "as many as may be",
    "batch requests?",
    "books?",
    "choosy",
    "chronicles?",
    "doorkeeper",
    "doors?",
    "exclusive (device|executor|gpu)s?",
    "hindsight",
    "journal",
    "kin",
    "knows_requests",
    "left alone for a while",
    "newcomer",
    "on trial",
    "roster",
    "strangers?",
    "unready",
    "wishes",
)
"""Whole words, whatever their case: metaphors, and identifiers that have a new name."""

OLD_NAMES = {
    "CHANGELOG.md",
    "docs/glossary.md",
    "roma/config/renamed.py",
    "tests/unit/project/test_glossary.py",
}
QUESTIONS = re.compile(r"(What|Who|Whom|Whose|Which|How|Whether|Why|Where|When|Those)\b")
PACKAGES = ("roma/", "controllers/", "dispatcher/", "supervisor/")
TEXTS = (".py", ".md", ".js", ".html", ".yaml", ".toml", ".sh", "Makefile")


@cache
def files():
    done = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=ROOT)
    return tuple(name for name in done.stdout.splitlines() if (ROOT / name).is_file())


@cache
def trees():
    sources = [name for name in files() if name.endswith(".py") and name.startswith(PACKAGES)]
    return {name: ast.parse((ROOT / name).read_text()) for name in sources}


@pytest.mark.parametrize("word", BANNED)
def test_an_old_word_is_nowhere(word):
    pattern = re.compile(rf"(?<![\w-]){word}(?![\w-])", re.IGNORECASE)
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in files()
        if name.endswith(TEXTS) and name not in OLD_NAMES
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_table_of_old_words_is_that_of_this_test():
    text = (ROOT / "docs/glossary.md").read_text()
    for word in ("allowance", "book, books", "door", "hindsight", "journal", "roster", "stranger"):
        assert f"| {word}" in text


def test_a_class_name_stands_once():
    found = defaultdict(list)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{name}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_docstring_says_what_a_thing_is_or_does():
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    found = [
        f"{name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node)) and QUESTIONS.match(text)
    ]
    assert not found, "\n".join(found)
