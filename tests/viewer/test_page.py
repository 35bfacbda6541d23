"""What the page is made of; `test_browser` looks at it."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

from hypothesis import given
from hypothesis import strategies as st

from cleaner_env.viewer import build_page
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import EpisodeRecord

HOSTILE = st.text() | st.sampled_from(
    ["</script>", "<!--<script>", "]]>", "@@DATA@@", "\ud800", "\u2028", "&lt;", '"><img src=x onerror=alert(1)>', "\0"]
)


class Elements(HTMLParser):
    """The page as an HTML parser divides it."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.contents, self._inside = [], {}, None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag, dict(attributes).get("id")

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        self.contents[self._inside] = self.contents.get(self._inside, "") + data


def record(*said, problem="p-1"):
    turns = tuple(map(Turn, said))
    return EpisodeRecord(problem, "exam", (), turns, tuple({"role": "assistant", "content": text} for text in said))


PLAIN = Elements(build_page([record("a")], "a run"))


@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_leaves_its_place(said, problem, title):
    page = build_page([record(said, problem=problem)], title)
    assert page.isascii()
    found = Elements(page)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in PLAIN.tags]
    data = json.loads(found.contents["script", "data"])
    assert data["texts"] == [said]
    assert data["episodes"][0]["problem"] == problem
    readable = title.encode("utf-8", "replace").decode("utf-8")
    if title.isprintable():
        assert found.contents.get(("title", None), "").strip() == readable.strip()


def test_the_policy_allows_this_style_and_this_script_only():
    policy = next(attributes["content"] for _, attributes in PLAIN.tags if attributes.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    for name, element in {"style-src": "style", "script-src": "script"}.items():
        digest = base64.b64encode(hashlib.sha256(PLAIN.contents[element, None].encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'"
    assert not rules


def test_nothing_is_loaded_from_anywhere():
    for _, attributes in PLAIN.tags:
        assert not attributes.keys() & {"src", "href", "srcset", "action", "background"}
    sources = "".join(
        files("cleaner_env.viewer").joinpath(name).read_text()
        for name in ("page.css", "difference.js", "episode.js", "page.js")
    )
    assert not re.search(r"https?:|url\(|@import|innerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(", sources)


def test_a_text_is_stored_once():
    one, many = (len(build_page([record("x" * 10_000)] * count, "run")) for count in (1, 100))
    assert many < one + 100 * 700
