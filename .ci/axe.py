"""Check a built site with axe-core in Chromium, on a light desktop and a dark phone, and that nothing is cut or hidden.

What is seen is measured in all four combinations of theme and device, on each device with either of two families of
fonts as the only ones: nothing is wider than the window or cut off, each picture is there, and its text has contrast
with what is drawn behind it. A page that is not checked whole is seen with one of the families, by turns.

    python .ci/axe.py HTML [PAGE ...]

Without names of pages: one of each kind, and what is wide or cut off on every other one, of the pages of rules one;
`all`: all of it on every page. It needs axe-core-python, selenium, chromium, chromedriver, fontconfig and both families
of fonts, and no network.
"""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

from selenium import webdriver

KINDS = (
    "index.html",
    "conventions.html",
    "field-layouts.html",
    "explorer.html",
    "layouts.html",
    "performance.html",
    "cheat-sheet.html",
    "five-minutes.html",
    "glossary.html",
    "search.html?q=BLK-3",
    "howto/cublas-te.html",
    "notebooks/quantize-notebook.html",
    "tutorials/check-my-kernel.html",
    "tutorials/megatron-accelerate.html",
    "reference/fp4ref.registry.html",
    "rule/blk-3.html",
    "wrong-dump.html",
)
RULE = "rule/blk-3.html"
SIZES = {"desktop": (1400, 900), "phone": (390, 844)}
AXE = {("light", "desktop"), ("dark", "phone")}  # contrast is the theme's, order and size the device's
FAMILIES = {
    "DejaVu": {"sans-serif": "DejaVu Sans", "serif": "DejaVu Serif", "monospace": "DejaVu Sans Mono"},
    "Liberation": {"sans-serif": "Liberation Sans", "serif": "Liberation Serif", "monospace": "Liberation Mono"},
}
VIEWS = {  # by the family of fonts that the browser has
    "DejaVu": (("light", "desktop"), ("light", "phone")),
    "Liberation": (("dark", "desktop"), ("dark", "phone")),
}
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd"><fontconfig>
<include ignore_missing="yes">/etc/fonts/conf.d</include><cachedir>{cache}</cachedir>{folders}{aliases}
</fontconfig>"""
ALIAS = '<alias binding="strong"><family>{}</family><prefer><family>{}</family></prefer></alias>'
SEEN = """
const found = [], beyond = document.documentElement.scrollWidth - innerWidth;
if (beyond > 1) found.push(`the page is ${beyond} px wider than the window`);
for (const table of innerWidth < 1000 ? [] : document.querySelectorAll("article table")) {
  const wider = Math.round(table.getBoundingClientRect().width - table.parentElement.clientWidth);
  if (wider > 1) {
    found.push(`a table is ${wider} px wider than its text: ${table.rows[0].innerText.replace(/\\s+/g, " ")}`);
  }
}
const name = (one) => [one.tagName.toLowerCase(), ...one.classList].join(".");
const within = (one, held) => one && (held(getComputedStyle(one)) || within(one.parentElement, held));
for (const one of document.body.querySelectorAll("*")) {
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  if (!box.width || !box.height || style.visibility === "hidden" || style.position === "fixed") continue;
  const past = box.right > innerWidth + 1 && box.left < innerWidth;
  if (past && !within(one.parentElement, (own) => own.overflowX !== "visible")) {
    found.push(`${name(one)} ends ${Math.round(box.right - innerWidth)} px beyond the window`);
  }
  const cut = (flow, whole, shown) => /hidden|clip/.test(flow) && shown > 2 && whole > shown + 2;
  const across = cut(style.overflowX, one.scrollWidth, one.clientWidth);
  if ((across || cut(style.overflowY, one.scrollHeight, one.clientHeight)) && one.innerText?.trim()) {
    found.push(`${name(one)} cuts off its text: ${one.innerText.trim().slice(0, 60)}`);
  }
}
for (const cell of document.querySelectorAll("td, th, figcaption, h1, h2, h3, h4, p, li, dt")) {
  if (cell.clientWidth && cell.scrollWidth > cell.clientWidth + 2) {
    found.push(`text runs out of ${name(cell)}: ${cell.innerText.slice(0, 60)}`);
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  const own = button.getBoundingClientRect(), letter = document.createRange();
  const covers = (at) =>
    at.right > own.left + 1 && at.left < own.right && at.top < own.bottom - 2 && at.bottom > own.top + 2;
  const shown = (text, i) => (letter.setStart(text, i), letter.setEnd(text, i + 1), letter.getBoundingClientRect());
  const texts = document.createTreeWalker(button.parentElement.querySelector("pre"), NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(), count = 0; text && count < 300; count += text.length, text = texts.nextNode()) {
    if (!text.data.split("").some((one, i) => one.trim() && covers(shown(text, i)))) continue;
    found.push(`the button covers code: ${text.data}`);
    break;
  }
}
const entry = document.querySelector(".sidebar-tree a.current");
if (entry && innerWidth > 1000 && entry.getBoundingClientRect().bottom > innerHeight) {
  found.push("the side bar does not show the page's own entry");
}
const split = document.querySelector("wbr.phone");
if (split && innerWidth > 1000 && getComputedStyle(split).display !== "none") {
  found.push("names break where only a phone's shall");
}
return found;
"""
CONTRAST = 4.5  # of text in a picture, as WCAG asks of text
# A picture's text, and the last shape that was drawn under its middle. A pattern is taken for what it covers.
PICTURES = f"""
const done = arguments[arguments.length - 1], found = [];
const parts = (colour) => colour.match(/^rgba?\\(([^)]*)\\)$/)?.[1].split(/[ ,\\/]+/).map(Number);
const light = (colour) => colour.slice(0, 3).reduce((sum, part, i) => {{
  const value = part / 255;
  return sum + [0.2126, 0.7152, 0.0722][i] * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
}}, 0);
const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const filled = (shape) => {{
  const style = getComputedStyle(shape), colour = parts(style.fill);
  return colour && (colour[3] ?? 1) > 0.5 && style.fillOpacity > 0.5 && style.opacity > 0.5 ? colour : null;
}};
const page = parts(getComputedStyle(document.body).backgroundColor);
const pictures = [...document.images].filter((one) => one.offsetParent);
for (const one of pictures) if (!one.complete || !one.naturalWidth) found.push(`a picture is missing: ${{one.src}}`);
const drawn = [...new Set(pictures.map((one) => one.src))].filter((src) => new URL(src).pathname.endsWith(".svg"));
Promise.all(drawn.map(async (src) => {{
  const holder = document.createElement("div");
  holder.style = "position: absolute; left: 0; top: 0; visibility: hidden";
  holder.attachShadow({{ mode: "open" }}).innerHTML = (await (await fetch(src)).text()).replace(/^[^]*?(?=<svg)/, "");
  document.body.append(holder);
  const under = [];
  for (const shape of holder.shadowRoot.querySelectorAll("rect, path, circle, ellipse, polygon, text")) {{
    if (shape.closest("defs, clipPath, pattern")) continue;
    const box = shape.getBoundingClientRect(), colour = filled(shape);
    if (shape.tagName !== "text") {{
      if (colour) under.push([box, colour]);
      continue;
    }}
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    const back = under.findLast(([b]) => b.left <= x && x <= b.right && b.top <= y && y <= b.bottom)?.[1] ?? page;
    const told = contrast(colour ?? back, back);
    if (shape.textContent.trim() && told < {CONTRAST}) {{
      found.push(`${{src.split("/").pop()}}: text with contrast ${{told.toFixed(1)}}: ${{shape.textContent}}`);
    }}
  }}
  holder.remove();
}})).then(() => done(found));
"""
SHOWN = """
const done = arguments[arguments.length - 1];
requestAnimationFrame(() => requestAnimationFrame(() => done(null)));
"""
# Axe's time grows with the square of the cells: of a page with hundreds, four rows are left in each table.
RUN = """
const done = arguments[arguments.length - 1];
if (document.querySelectorAll("td").length > 300) {
  for (const row of document.querySelectorAll("tbody tr:nth-child(n + 5)")) row.remove();
}
axe.run({ resultTypes: ["violations"] }).then((found) => done(found.violations));
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def browser(family: str, folder: Path) -> webdriver.Chrome:
    """Start Chromium without a window, and with one family of fonts; its settings and cache are in a folder."""
    listed = subprocess.run(["fc-list", "--format", "%{family}\t%{file}\n"], capture_output=True, text=True, check=True)
    names, found = FAMILIES[family], (line.split("\t") for line in listed.stdout.splitlines())
    folders = {f"<dir>{Path(file).parent}</dir>" for name, file in found if name in names.values()}
    aliases = "".join(ALIAS.format(*alias) for alias in names.items())
    settings = folder / f"{family}.conf"
    settings.write_text(FONTS.format(cache=folder / family, folders="".join(folders), aliases=aliases), "utf-8")
    environment = {**os.environ, "FONTCONFIG_FILE": str(settings)}
    for generic, name in names.items():  # of a font that is missing, another one takes the place
        match = ["fc-match", "--format", "%{family}", generic]
        got = subprocess.run(match, env=environment, capture_output=True, text=True, check=True).stdout
        if got != name:
            raise SystemExit(f"fonts: {generic} is {got}, need {name}")
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver", env=environment)
    )
    driver.set_script_timeout(300)
    driver.command_executor.client_config.timeout = 330  # type: ignore[union-attr] # the script's own limit comes first
    return driver


def pages(html: Path) -> list[str]:
    """Return every page, but of the pages of rules only one, and none that leads on to another."""
    stays = (path for path in html.rglob("*.html") if 'http-equiv="refresh"' not in path.read_text("utf-8"))
    found = sorted(str(path.relative_to(html)) for path in stays)
    return [name for name in found if not name.startswith(("rule/", "_"))] + [RULE]


def findings(driver: webdriver.Chrome, script: str, whole: bool) -> list[str]:
    """Measure what is seen of the page that is shown, if it is whole its pictures, and run axe if a script is given."""
    seen: list[str] = driver.execute_script(SEEN)
    if whole:
        seen += driver.execute_async_script(PICTURES)
    if not script:
        return seen
    driver.execute_script(script)
    found = driver.execute_async_script(RUN)
    return [
        f"{one['id']} ({one['impact']}): {one['help']}; {len(one['nodes'])} times, first {one['nodes'][0]['target']}"
        for one in found
    ] + seen


def turn(driver: webdriver.Chrome, theme: str, device: str) -> None:
    """Show pages in another theme and size from now on."""
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.set_window_size(*SIZES[device])


def checked(root: str, family: str, asked: dict[str, bool]) -> Iterator[tuple[str, list[str]]]:
    """Look at pages in the views of one family of fonts. asked: by page, True if all of it is checked."""
    script = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        driver = browser(family, Path(folder))
        try:
            place = list(VIEWS).index(family)
            for name, whole in (page for i, page in enumerate(asked.items()) if page[1] or i % len(VIEWS) == place):
                for view in VIEWS[family]:
                    turn(driver, *view)
                    if whole or view == VIEWS[family][0]:  # axe changes a whole one
                        driver.get(f"{root}/{name}")
                    else:
                        driver.execute_async_script(SHOWN)
                    axe = script if whole and view in AXE else ""
                    yield f"{name}, {', '.join(view)}, {family}", findings(driver, axe, whole)
        finally:
            driver.quit()


def main(html: Path, names: list[str]) -> int:
    """Check the pages, print what is found, and return 1 if anything was."""
    handler = functools.partial(Quiet, directory=str(html))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a browser that leaves a page needs no more of it
    threading.Thread(target=server.serve_forever, daemon=True).start()
    every = dict.fromkeys(pages(html), names == ["all"])
    asked = every if names == ["all"] else dict.fromkeys(names, True) or every | dict.fromkeys(KINDS, True)
    root = f"http://127.0.0.1:{server.server_port}"
    with ThreadPoolExecutor(len(VIEWS)) as pool:
        found = list(pool.map(lambda family: list(checked(root, family, asked)), VIEWS))
    server.shutdown()
    lines = [f"{where}: {line}" for part in found for where, seen in part for line in seen]
    print("\n".join([*lines, f"{sum(map(len, found))} views of {len(asked)} pages, {len(lines)} findings"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
