"""The page of `cleaner view` in a real browser: what it shows, how one moves about, and what hostile text can do."""

import re
from urllib.parse import unquote

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from cleaner_env import SAARWrapper
from cleaner_env.cli.app import app
from cleaner_env.viewer import build_page
from cleaner_env.wrappers import RecordEpisodes
from cleaner_env.wrappers.purification import Turn
from cleaner_env.wrappers.records import EpisodeRecord

PHONE = {"width": 390, "height": 844}
ATTACK = """</script><img src=x onerror="document.title='owned'"><script>document.title='owned'</script>"""
REWRITTEN = "from math import factorial\nvalue = factorial(9) // 7\nprint(value, value % 1000)"


def view(*arguments):
    done = CliRunner().invoke(app, ["view", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def page(tmp_path_factory, python_call):
    """Five episodes that really ran: repaired with similar code, with other code, not repaired, given up, and clean."""
    call = python_call
    played = [
        [call("prnt(6 * 7)", "First.\n"), call("print(6 * 7)", "A typo.\n"), "\\boxed{1}"],
        [call("1 / 0", "Divide.\n"), call(REWRITTEN, "Another way.\n"), "\\boxed{2}"],
        [call("a"), call("b"), call("c"), call("d"), "\\boxed{3}"],
        [call("boom", f"{ATTACK}\n"), f"{ATTACK} \\boxed{{4}}"],
        [call("print('a needle')", "No error here.\n"), "\\boxed{5}"],
    ]
    file = tmp_path_factory.mktemp("run") / "episodes.jsonl"
    env = RecordEpisodes(SAARWrapper(gym.make("CleanerArithmetic-v0", max_turns=8)), file)
    for seed, actions in enumerate(played):
        env.reset(seed=seed)
        for action in actions:
            env.step(action)
    env.close()
    code, out, _ = view(file)
    assert code == 0
    assert out.strip() == str(file.with_suffix(".html"))
    return file.with_suffix(".html")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Two thousand episodes, of which every hundredth is correct."""
    file = tmp_path_factory.mktemp("many") / "many.html"
    said = ({"role": "assistant", "content": "42"},)
    verdicts = ["correct", *["incorrect"] * 99] * 20
    records = [
        EpisodeRecord(f"p-{number}", "exam", (), (Turn("42"),), said, terminated=True, info={"verdict": verdict})
        for number, verdict in enumerate(verdicts)
    ]
    file.write_text(build_page(records, "many"))
    return file


@pytest.fixture(autouse=True)
def quiet(browser):
    """Nothing goes wrong on any page, and nothing is asked of a network."""
    yield
    assert not browser.happened("Runtime.exceptionThrown")
    assert not browser.happened("Log.entryAdded")
    asked = {request["request"]["url"].partition(":")[0] for request in browser.happened("Network.requestWillBeSent")}
    assert asked <= {"file"}


def test_the_list_says_what_became_of_each_episode(browser, page):
    browser.open(page)
    assert browser.text("#summary") == "5 episodes, 0 % correct, 4 repairs"
    assert browser.texts("#items .chips") == ["shallow", "deep", "failed", "abandoned", ""]
    assert len(set(browser.texts("#items .name"))) == 5


def test_a_shallow_repair_keeps_the_reasoning_and_marks_the_code(browser, page):
    browser.open(page, "#episode=0")
    assert browser.text(".decision b") == "Shallow"
    assert re.search(r"similarity 0\.\d{3}\n?1 attempt", browser.text(".decision .numbers"))
    assert "NameError: name 'prnt' is not defined" in browser.text(".raw")
    assert "NameError" not in browser.text(".purified")
    assert browser.texts(".purified pre") == ["First.\n", "print(6 * 7)", "42"]
    assert browser.texts(".purified ins") == ["print"]
    assert browser.texts(".raw del")[0] == "prnt"


def test_a_deep_repair_puts_the_whole_correction_in_place(browser, page):
    browser.open(page, "#episode=1")
    assert browser.text(".decision b") == "Deep"
    assert browser.texts(".raw h4")[0].startswith("first attempt")
    assert browser.texts(".purified pre")[:2] == ["Another way.\n", REWRITTEN]


@pytest.mark.parametrize(("episode", "name", "error"), [(2, "Failed", "'d' is not"), (3, "Abandoned", "'boom' is not")])
def test_an_error_that_was_not_repaired_stands_on_both_sides(browser, page, episode, name, error):
    browser.open(page, f"#episode={episode}")
    assert browser.text(".decision b") == name
    assert error in browser.text(".raw")
    assert error in browser.text(".purified")


def test_hostile_text_is_shown_as_text(browser, page):
    browser.open(page, "#episode=3")
    assert ATTACK in browser.text("#episode")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert "owned" not in browser.run("document.title")


def test_filters_and_search_narrow_the_list_and_the_address_keeps_them(browser, page):
    browser.open(page)
    browser.choose("#filter-repairs", "deep")
    assert browser.text("#summary").startswith("1 of 5 episodes")
    assert browser.texts("#items .chips") == ["deep"]
    browser.choose("#filter-repairs", "")
    browser.type("#search", "A NEEDLE")
    assert browser.text("#summary").startswith("1 of 5 episodes")
    assert "a needle" in browser.text("#episode")
    fragment = "#" + browser.run("location.hash.slice(1)")
    assert "search=A NEEDLE" in unquote(fragment.replace("+", " "))
    browser.open(page, fragment)
    assert browser.text("#summary").startswith("1 of 5 episodes")
    browser.type("#search", "nowhere to be found")
    assert browser.text("#episode") == "No episode fits these filters."


def test_keys_go_from_one_episode_to_the_next(browser, page):
    browser.open(page, "#episode=0")
    names = browser.texts("#items .name")
    browser.press("j")
    assert browser.text("h2") == names[1]
    browser.press("k")
    assert browser.text("h2") == names[0]
    browser.press("k")
    assert browser.text("h2") == names[0]
    browser.press("v")
    assert "prnt(6 * 7)" in browser.texts(".raw pre")[0]
    assert "First." in browser.texts(".raw pre")[0]
    browser.press("/")
    assert browser.run("document.activeElement.id") == "search"


def test_a_phone_shows_the_list_or_an_episode(browser, page):
    browser.open(page, **PHONE)
    visible = "getComputedStyle(document.querySelector('{}')).display !== 'none'"
    assert (browser.run(visible.format("nav")), browser.run(visible.format("main"))) == (True, False)
    browser.click("#items li:nth-child(2) button")
    assert (browser.run(visible.format("nav")), browser.run(visible.format("main"))) == (False, True)
    raw, purified = (f"document.querySelector('.{side}').getBoundingClientRect()" for side in ("raw", "purified"))
    assert browser.run(f"{raw}.bottom <= {purified}.top + 1 && {raw}.left === {purified}.left")
    browser.click(".back")
    browser.run("new Promise((resolve) => setTimeout(resolve, 200))")
    assert (browser.run(visible.format("nav")), browser.run(visible.format("main"))) == (True, False)


@pytest.mark.parametrize("width", [320, 390, 768, 1400, 2560])
@pytest.mark.parametrize("episode", range(5))
def test_no_width_makes_the_page_scroll_sideways(browser, page, width, episode):
    browser.open(page, f"#episode={episode}", width=width)
    assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out_from_their_ground(browser, page, dark):
    """Every text has the contrast that WCAG 2.2 asks for at level AA, 4.5 to 1."""
    for episode in range(4):
        browser.open(page, f"#episode={episode}", dark=dark)
        assert browser.run(CONTRASTS) == []


def test_long_lists_hold_what_can_be_seen_only(browser, many):
    browser.open(many)
    assert browser.text("#summary") == "2,000 episodes, 1 % correct, 0 repairs"
    assert browser.run("document.querySelectorAll('#items li').length") < 60
    browser.run("document.querySelector('#list').scrollTop = 1e9; new Promise((resolve) => setTimeout(resolve, 200))")
    assert browser.texts("#items .name")[-1] == "p-1999"
    browser.choose("#filter-result", "correct")
    assert browser.texts("#items .name")[:2] == ["p-0", "p-100"]


def test_a_page_without_episodes_says_so(browser, tmp_path):
    file = tmp_path / "none.html"
    file.write_text(build_page([], "none"))
    browser.open(file)
    assert browser.text("#episode") == "No episode was recorded."


CONTRASTS = """
(() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!says || !element.checkVisibility() || element.closest("[disabled], select")) continue;
    const [a, b] = [parse(getComputedStyle(element).color), ground(element)].map(luminance).sort((x, y) => x - y);
    const ratio = (b + 0.05) / (a + 0.05);
    if (ratio < 4.5) low.push([element.tagName, element.className, element.textContent.slice(0, 20), ratio.toFixed(2)]);
  }
  return low;
})()
"""
