"""Every local link and picture of the Markdown files leads to a file or folder of the clone."""

import re
from urllib.parse import unquote

import pytest

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\]\(\s*(?:<([^>]*)>|([^\s()]+))(?:\s+[\"'(][^)]*)?\s*\)")  # [text](place "title"), ![...](...)
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(?:<([^>]*)>|(\S+))", re.MULTILINE)  # [name]: place
HTML = re.compile(r"""<[^>]*\s(?:src|href|srcset)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def places(text):
    """Files and folders that a Markdown text links to, without addresses elsewhere and parts of the page itself."""
    prose = CODE.sub("", text)
    found = [hit[1] or hit[2] or "" for rule in (INLINE, REFERENCE, HTML) for hit in rule.finditer(prose)]
    return [unquote(place) for whole in found if not ELSEWHERE.match(whole) and (place := whole.partition("#")[0])]


def broken(path, root):
    """Those places of a file that do not exist, or lie outside of the clone."""
    targets = {place: (path.parent / place).resolve() for place in places(path.read_text("utf-8"))}
    inside = root.resolve()
    return [place for place, target in targets.items() if not (target.exists() and target.is_relative_to(inside))]


def test_local_links_and_pictures_exist(tracked, root):
    pages = [path for path in tracked if path.suffix == ".md"]
    assert root / "README.md" in pages
    assert {str(path.relative_to(root)): missing for path in pages if (missing := broken(path, root))} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[a](b.md) and ![c](d/e.png "title")', ["b.md", "d/e.png"]),
        ("[`a`](a/)", ["a/"]),
        ("[![badge](badge.png)](page.md#part)", ["badge.png", "page.md"]),
        ("[a](<with space.md>) [b](with%20space.md)", ["with space.md", "with space.md"]),
        ("[a]: far/away.md\n[b][a]", ["far/away.md"]),
        ('<img width="3" src="x.png"> <a href=\'y.md\'>y</a>', ["x.png", "y.md"]),
        ("[a](https://example.org/b.md) [b](#part) [c](mailto:a@example.org)", []),
        ("`[a](b.md)`\n```\n[a](b.md)\n```\n[c](d.md)", ["d.md"]),
    ],
)
def test_what_counts_as_a_link(text, expected):
    assert places(text) == expected


def test_a_missing_file_and_one_outside_are_broken(tmp_path):
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "outside.md").touch()
    page = clone / "page.md"
    page.write_text("[a](page.md) [b](absent.md) [c](../outside.md)")
    assert broken(page, clone) == ["absent.md", "../outside.md"]
