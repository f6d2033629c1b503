"""The status page in a real browser: what it shows, that it fits, and what hostile strings can do in it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftis_node.store.network import NetworkStore
from tests.status.browser import Tab, browser_tab
from tests.status.nodes import HOSTILE, empty_home, serving, trained_home

pytestmark = pytest.mark.slow

READY = "document.querySelectorAll('.tile').length > 0 && document.querySelectorAll('svg[viewBox]').length > 0"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser_tab(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_faults(tab: Tab) -> Iterator[None]:
    """Whatever a test shows, no script fails and nothing is blocked."""
    tab.faults.clear()
    yield
    tab.open("about:blank")
    assert tab.faults == []


def show(tab: Tab, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
    tab.size(width, height, dark=dark)
    tab.open(url)
    tab.until(READY)


def keep_picture(tab: Tab, name: str) -> None:
    """For people to look at, where a folder is given."""
    if folder := os.environ.get("FTIS_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.screenshot(Path(folder) / f"{name}.png")


def assert_fits(tab: Tab) -> None:
    """No scrolling to the side, and no element that begins or ends outside the window."""
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    outside = tab.evaluate(
        "[...document.querySelectorAll('body *')].filter((element) => {"
        " const box = element.getBoundingClientRect();"
        " return box.width > 2 && (box.right > window.innerWidth + 1 || box.left < -1); })"
        ".map((element) => element.outerHTML.slice(0, 200))"
    )
    assert outside == []


def contrasts(tab: Tab) -> list[tuple[float, str]]:
    """The contrast of every text that can be seen with what is behind it, by WCAG's formula; the lowest first."""
    found = tab.evaluate(
        """(() => {
          const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
            .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = (element) => {
            for (let e = element; e; e = e.parentElement) {
              const [r, g, b, a = 1] = rgb(getComputedStyle(e).backgroundColor);
              if (a === 1) return [r, g, b];
            }
            return [255, 255, 255];
          };
          const found = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const element = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
            const style = getComputedStyle(element);
            const [a, b] = [light(rgb(element.closest("svg") ? style.fill : style.color)), light(behind(element))];
            found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data.slice(0, 60)]);
          }
          return found.sort((x, y) => x[0] - y[0]);
        })()"""
    )
    return [(float(ratio), str(text)) for ratio, text in found]


def test_a_node_that_has_just_been_started(tab: Tab, tmp_path: Path) -> None:
    with serving(empty_home(tmp_path / "home")) as node:
        show(tab, node.url)
        text = tab.text()
        keep_picture(tab, "empty")
    assert "degraded" in text
    assert "learner: starting" in text
    assert "The plots of rounds begin with the first finished one." in text
    assert "No round is finished yet." in text
    assert "None yet: others join by dialling this node." in text
    assert "undefined" not in text
    assert "NaN" not in text


def test_a_node_alone(tab: Tab, tmp_path: Path) -> None:
    with serving(trained_home(tmp_path / "home", rounds=3)) as node:
        show(tab, node.url)
        text = tab.text()
        charts = tab.evaluate(
            "[...document.querySelectorAll('figure')].filter((figure) => !figure.hidden)"
            ".map((figure) => figure.querySelector('strong').textContent)"
        )
        keep_picture(tab, "lone")
    assert "healthy" in text
    assert "Round 4: generating 6 groups" in text
    assert charts == ["Reward round 3", "Seconds per round round 3", "Generation round 3"]
    assert "NaN" not in text


def test_a_relay_shows_what_a_relay_has(tab: Tab, tmp_path: Path) -> None:
    home = empty_home(tmp_path / "home")
    store = NetworkStore(home)
    store.put("learner", b"%d none: this is a relay" % os.getpid())
    store.close()
    with serving(home) as node:
        show(tab, node.url)
        text = tab.text()
    assert "healthy" in text
    assert "Passing batches on (a relay has no learner)" in text
    assert "rounds" not in text
    assert "Sequences" not in text


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (800, False), (320, False), (320, True)])
def test_fifty_peers_with_hostile_names_fit_and_can_be_read(
    tab: Tab, tmp_path_factory: pytest.TempPathFactory, width: int, dark: bool
) -> None:
    with serving(trained_home(tmp_path_factory.mktemp("crowd"), rounds=60, peers=50)) as node:
        show(tab, node.url, width=width, dark=dark)
        assert_fits(tab)
        keep_picture(tab, f"crowd-{width}{'-dark' if dark else ''}")
        assert tab.evaluate("document.querySelectorAll('#peers tbody tr').length") == 50
        ratio, text = contrasts(tab)[0]
        assert ratio >= 4.5, f"{text!r} is hard to read"


def test_strings_from_peers_are_text_and_nothing_else(tab: Tab, tmp_path: Path) -> None:
    with serving(trained_home(tmp_path / "home", rounds=2, peers=50)) as node:
        show(tab, node.url)
        text = tab.text()
        assert tab.evaluate("document.title").startswith("degraded: 0a0a0a0a")
        assert tab.evaluate("document.querySelectorAll('img, iframe, object, embed, body script').length") == 0
        assert not tab.evaluate(
            "[...document.querySelectorAll('*')].some((e) => [...e.attributes].some((a) => a.name.startsWith('on')))"
        )
    for harmless in (HOSTILE[0], HOSTILE[1], HOSTILE[4][:64], HOSTILE[6]):
        assert harmless in text, "it is shown as it is"
    for character in "\u202e\u2066\x1b\x00\x07":
        assert character not in text
    assert "?evil? ?" in text


def test_an_inline_script_would_not_run_either(tab: Tab, tmp_path: Path) -> None:
    """The second line of defence: even HTML that got into the page would be stopped by its policy."""
    with serving(empty_home(tmp_path / "home")) as node:
        show(tab, node.url)
        tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 1\">')")
        tab.until("document.images.length === 1 && document.images[0].complete")
        assert tab.evaluate("window.owned") is None
        blocked = [fault for fault in tab.faults if "Content Security Policy" in fault]
    assert blocked
    tab.faults.clear()


def test_a_plot_tells_its_values_by_pointer_and_by_key(tab: Tab, tmp_path: Path) -> None:
    with serving(trained_home(tmp_path / "home", rounds=20, peers=3)) as node:
        show(tab, node.url)
        caption = "document.querySelector('figure figcaption').innerText"
        assert "round 20" in tab.evaluate(caption)
        box = tab.evaluate("(({x, y, width}) => [x, y, width])(document.querySelector('svg').getBoundingClientRect())")
        tab.point_at(box[0] + 50, box[1] + 60)
        tab.until(f"{caption}.includes('round 1\\n')")
        assert tab.evaluate("document.querySelector('svg .cursor') !== null")
        tab.point_at(5, 5)
        tab.until(f"{caption}.includes('round 20')")
        tab.evaluate("document.querySelector('svg').focus()")
        tab.press("ArrowLeft")
        label = tab.evaluate("document.querySelector('svg').getAttribute('aria-label')")
        assert label.startswith("Reward, round 19: own 0.")


def test_a_node_that_does_not_answer_any_more_is_said_to_be_silent(tab: Tab, tmp_path: Path) -> None:
    with serving(trained_home(tmp_path / "home", rounds=2)) as node:
        show(tab, node.url)
        assert "healthy" in tab.text()
    tab.until("/The node does not answer since \\d+ s/.test(document.body.innerText)")
    text = tab.text()
    assert "no answer" in text
    assert "What is shown below is from before." in text
    assert "Round 3" in text
    assert all("ERR_CONNECTION_REFUSED" in fault for fault in tab.faults), tab.faults
    tab.faults.clear()


def test_a_store_that_can_not_be_read_is_said(tab: Tab, tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=2)
    with serving(home) as node:
        show(tab, node.url)
        shutil.move(home / "store.sqlite3", tmp_path / "gone")
        tab.until("document.body.innerText.includes('there is no store here')")
        assert "The node can't tell its state since" in tab.text()
    assert all("503" in fault for fault in tab.faults), tab.faults
    tab.faults.clear()
