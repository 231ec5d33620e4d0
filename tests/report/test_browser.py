"""Claims about the report in a real browser: Chromium, headless, light and dark, desk and phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tuneloop.artifacts import read_json

pytestmark = pytest.mark.browser

SCHEMES = {"dark": 0, "light": 1}
"""Chromium's numbers for `preferredColorScheme`."""

PROBE = """<!doctype html><body style="margin:0"><iframe id="page" style="width:WIDTHpx;height:900px;border:0"></iframe>
<pre id="found"></pre><script>
const frame = document.getElementById("page");
function rgb(text) {
  const n = text.match(/[\\d.]+/g).map(Number);
  return {c: n.slice(0, 3), a: n.length > 3 ? n[3] : 1};
}
function luminance(c) {
  const l = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
}
function contrast(element, view) {
  let under = element;
  while (under && rgb(view.getComputedStyle(under).backgroundColor).a === 0) under = under.parentElement;
  const a = luminance(rgb(view.getComputedStyle(element).color).c);
  const b = luminance(rgb(view.getComputedStyle(under).backgroundColor).c);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
frame.onload = () => {
  const inside = frame.contentDocument, view = frame.contentWindow;
  const images = [...inside.images];
  const texts = [...inside.body.querySelectorAll("*")].filter(e =>
    !e.closest("svg") && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  const faint = texts.map(e => [contrast(e, view), e.tagName + " " + e.textContent.trim().slice(0, 30)])
    .filter(pair => pair[0] < 4.5);
  document.getElementById("found").textContent = JSON.stringify({
    scrollWidth: inside.documentElement.scrollWidth,
    background: view.getComputedStyle(inside.body).backgroundColor,
    images: images.length, loaded: images.filter(i => i.complete && i.naturalWidth > 0).length,
    texts: texts.length, faint: faint, scripts: inside.scripts.length,
    boards: inside.querySelectorAll(".card svg").length,
  });
};
frame.src = "PAGE";
</script></body>"""


@pytest.fixture(scope="session")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    how = "no Chromium was found; install it with `apt-get update && apt-get install -y chromium`"
    if os.environ.get("CI") == "true":
        pytest.fail(how)  # a skip would look like a pass there
    pytest.skip(how)


def browse(chromium: str, page: Path, profile: Path, scheme: str, *options: str) -> str:
    """What headless Chromium prints for the page at `page`."""
    command = [
        *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
        *("--allow-file-access-from-files", "--virtual-time-budget=5000", f"--user-data-dir={profile}"),
        *(f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *options, page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def probe(chromium: str, report: Path, folder: Path, scheme: str, width: int) -> dict[str, Any]:
    """What a page around the report measures in it (the report itself runs no script)."""
    around = folder / "around.html"
    around.write_text(PROBE.replace("PAGE", report.as_uri()).replace("WIDTH", str(width)), encoding="utf-8")
    dom = browse(chromium, around, folder / "profile", scheme, "--dump-dom")
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)[1]))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_report_reads_well(chromium: str, compared: Path, tmp_path: Path, scheme: str, width: int) -> None:
    report = compared / "compare/report.html"
    found = probe(chromium, report, tmp_path, scheme, width)
    assert found["scrollWidth"] <= width, "something sticks out sideways"
    assert found["loaded"] == found["images"] == 6  # before/after and five training figures
    assert found["boards"] == 48 and found["scripts"] == 0  # 24 boards before and after
    assert found["texts"] > 300 and found["faint"] == []  # WCAG AA: a contrast of 4.5 for text
    light = min(map(int, re.findall(r"\d+", found["background"]))) > 200
    assert light == (scheme == "light")


def test_a_hostile_reply_does_nothing_in_the_browser(chromium: str, compared: Path, tmp_path: Path) -> None:
    dom = browse(chromium, compared / "compare/report.html", tmp_path / "profile", "light", "--dump-dom")
    assert "<script" not in dom and "onerror=alert(1)&gt;" in dom  # it is there, as text
    assert read_json(compared / "compare/metrics.json")["verdict"]["kind"] == "improved" and "▲ Improved" in dom


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screenshot_is_no_blank_page(chromium: str, compared: Path, tmp_path: Path, scheme: str) -> None:
    shot = tmp_path / "shot.png"
    browse(
        chromium,
        compared / "compare/report.html",
        tmp_path / "profile",
        scheme,
        f"--screenshot={shot}",
        "--window-size=1000,1400",
    )
    image = Image.open(shot).convert("L")
    shades = Counter(image.get_flattened_data() if hasattr(image, "get_flattened_data") else image.getdata())
    (background, count), size = shades.most_common(1)[0], image.width * image.height
    assert (background > 200) == (scheme == "light")
    assert 0.3 < count / size < 0.97 and len(shades) > 50
