"""The explorer's script against the golden model: in a JavaScript engine, and in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from py_mini_racer import MiniRacer

import fp4ref
from fp4ref import rules
from fp4ref.cli import main
from fp4ref.conformance.explain.way import explain
from fp4ref.diagrams.place import Geometry
from fp4ref.explorer.page import html, source
from fp4ref.explorer.tables import offered, tables
from fp4ref.layout import LAYOUTS, STANDARD_LAYOUTS
from fp4ref.layout.worked import worked
from fp4ref.packing import unpack
from fp4ref.specs import STANDARD

TABLES = tables()
NAMES = [spec["name"] for spec in TABLES["specs"]]
SPECIALS = np.float32(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-45, 2.5, -5.0, 3.5, 0.25, 1.75, 6.0, 448.0, 3.4e38]
)
RUN = """(name, rows, columns, direction, bits) => {
  const N = Numerics(TABLES), x = Float32Array.from(bits.map(N.fromBits));
  const spec = TABLES.specs.find((one) => one.name === name);
  const made = N.quantize(x, rows, columns, spec, direction);
  return JSON.stringify({ data: [...made.data], scales: [...made.scales], amax: made.amax && [...made.amax].map(N.bits),
    values: [...made.values].map(N.bits) });
}"""


def case(number: int) -> tuple[str, str, np.ndarray]:
    """A specification, a direction and a tensor: sizes over all exponents, ties, zeros, NaN, infinities, subnormals."""
    rng = np.random.default_rng(number)
    name, direction = NAMES[number % len(NAMES)], ("row", "column")[number // len(NAMES) % 2]
    hadamard = fp4ref.profiles[name].hadamard and direction == "column"
    rows = 16 * int(rng.integers(1, 3)) if hadamard else int(rng.integers(1, 40))
    columns = int(rng.integers(1, 70))
    size = 2.0 ** (rng.integers(-140, 120) if number % 3 else 0) * 2.0 ** rng.integers(-6, 6, (rows, 1))
    with np.errstate(over="ignore"):
        x = (rng.standard_normal((rows, columns)) * size).astype(np.float32)
    if number % 5 == 0:  # small multiples: every tie of every format
        x = (rng.integers(-48, 49, (rows, columns)) / 8).astype(np.float32)
    specials = rng.random((rows, columns)) < (0, 0.05, 0.5)[number % 3]
    x[specials] = rng.choice(SPECIALS, specials.sum())
    if hadamard or number % 2:
        with np.errstate(over="ignore"):
            x = x.astype(ml_dtypes.bfloat16)
    return name, direction, x


def same_bytes(number: int, got: dict[str, Any]) -> None:
    name, direction, x = case(number)
    q = fp4ref.quantize(x, name, direction, backend="numpy")
    made = q.direction(direction)[0]
    values = fp4ref.dequantize(q, "float32", direction, backend="numpy").ravel()
    assert got["data"] == made.data.ravel().tolist(), (number, name, direction)
    assert got["scales"] == made.scales.ravel().tolist(), (number, name, direction)
    assert got["amax"] == (None if made.amax is None else made.amax.view(np.uint32).tolist())
    nan = np.isnan(values)
    theirs = np.array(got["values"], np.uint32)
    assert np.array_equal(np.isnan(theirs.view(np.float32)), nan)
    assert np.array_equal(theirs[~nan], values.view(np.uint32)[~nan])


def arguments(number: int) -> list[Any]:
    name, direction, x = case(number)
    bits = x.astype(np.float32).view(np.uint32).ravel().tolist()
    return [name, *x.shape, direction, bits]


@pytest.fixture(scope="module")
def engine() -> MiniRacer:
    context = MiniRacer()
    context.eval(f"globalThis.TABLES = {json.dumps(TABLES)};")
    for name in ("numerics", "layouts", "model"):
        context.eval(source(f"{name}.js"))
    context.eval(f"globalThis.run = {RUN}; globalThis.M = Model(TABLES);")
    return context


@pytest.mark.rule("BLK-3", "BLK-4", "BLK-5", "BLK-10", "BLK-11", "MXS-1", "GLB-2", "HAD-2", "FOS-3", "DEQ-1", "DEQ-2")
@pytest.mark.parametrize("start", range(0, 220, 44))
def test_script_has_the_bits_of_the_model(engine: MiniRacer, start: int) -> None:
    for number in range(start, start + 44):
        same_bytes(number, json.loads(engine.call("run", *arguments(number))))


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_explain(engine: MiniRacer, name: str) -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((32, 48)) * 2.0 ** rng.integers(-4, 4, (32, 1))).astype(ml_dtypes.bfloat16)
    spec = fp4ref.profiles[name]
    values = x.astype(np.float32).view(np.uint32).ravel().tolist()
    for direction in ("row", "column"):
        settings = {
            "spec": name,
            "direction": direction,
            "layout": "tiled_128x4",
            "rows": 32,
            "columns": 48,
            "dtype": "bfloat16",
        }
        engine.eval(f"globalThis.X = Float32Array.from({values}.map(M.numerics.fromBits));")
        engine.eval(f"globalThis.model = M.build({json.dumps(settings)}, X);")
        for row, column in ((0, 0), (5, 17), (31, 47)):
            steps = json.loads(engine.eval(f"JSON.stringify(M.steps(model, {row}, {column}))"))
            bits = {step["name"].removesuffix(" 1"): step["bits"] for step in steps}
            stages = explain(x, spec, row, column, direction)
            first = stages.candidates[0]
            expected = {
                "block amax": stages.block_amax,
                "scale t": first.before,
                "factor": first.factor[stages.inside],
                "scaled y": first.y[stages.inside],
                "global scale g": stages.g,
                "dequantized": stages.value,
            }
            for step, value in expected.items():
                assert int(bits[step], 16) == int(np.float32(np.ravel(value)[0]).view(np.uint32)), (step, direction)
            if not spec.four_over_six:
                assert int(bits["code"], 16) == stages.code
                assert int(bits["scale byte"], 16) == stages.scale
            assert {rule for step in steps for rule in step["rules"]} <= set(rules.defined())


def test_layouts_of_the_script(engine: MiniRacer) -> None:
    """Every layout that the page offers: padding, the map, its inverse, and the worked sum."""
    rng = np.random.default_rng(3)
    engine.eval("globalThis.L = Layouts(TABLES);")
    names = [layout["name"] for layout in TABLES["layouts"]]
    assert {form.name for form in STANDARD_LAYOUTS} | {"cutlass.sf_mn_major", "ggml.nvfp4_scale"} <= set(names)
    for number, name in enumerate(names):
        layout = LAYOUTS[name]
        found = f"TABLES.layouts[{number}]"
        for _ in range(8):
            rows, columns = (
                int(rng.integers(1, 40)) * (axis.multiple if axis.refused else 1)
                + (0 if axis.refused else int(rng.integers(200)))
                for axis in layout.axes
            )
            row, column = int(rng.integers(rows)), int(rng.integers(columns))
            offset = layout.offset(row, column, columns, rows)
            assert engine.eval(f"L.offset({found}, {row}, {column}, {columns}, {rows})") == offset
            assert json.loads(engine.eval(f"JSON.stringify(L.index({found}, {offset}, {columns}, {rows}))")) == [
                row,
                column,
            ]
            shape = json.loads(engine.eval(f"JSON.stringify(L.padded({found}, {rows}, {columns}))"))
            assert tuple(shape) == layout.padded_shape(rows, columns)
            said = engine.eval(f"L.worked({found}, {row}, {column}, {columns}, {rows})")
            assert said == worked(layout, (rows, columns), (row, column))


@pytest.mark.rule("GLB-1", "GLB-5")
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-row-scaled", "mxfp8-e4m3"])
def test_a_large_tensor_has_the_bits_of_the_model(engine: MiniRacer, name: str) -> None:
    """The shape of a language model's weight, values of which one element was set, and the rows of four elements."""
    shape, values = (28672, 8192), np.float32([0.75, -1.75, 3.5, 448, -0.0, 2.5, 11])
    flat = np.array([5000 * 8192 + 77, 5000 * 8192 + 78])
    settings = {"spec": name, "direction": "row", "layout": "tiled_128x4", "rows": shape[0], "columns": shape[1]}
    assert engine.eval(f"M.refusal({json.dumps(settings)})") == ""
    text = " ".join(map(str, values))
    engine.eval(f"globalThis.big = M.tensor({shape[0]}, {shape[1]}, {json.dumps(text)}, 'float32');")
    engine.eval(f"big.set({flat[0]}, 1e6); globalThis.model = M.build({json.dumps(settings)}, big);")
    for row, column in ((0, 0), (5000, 77), (5000, 78), (28671, 8191)):
        x = values[(row * shape[1] + np.arange(shape[1])) % len(values)][None].copy()
        if row == 5000:
            x[0, 77] = 1e6
        amax = {"nvfp4": np.float32([1e6]), "nvfp4-row-scaled": np.abs(x).max(axis=1), "mxfp8-e4m3": None}[name]
        q = fp4ref.quantize(x, name, amax=amax, backend="numpy")
        place = Geometry(fp4ref.profiles[name], shape).place(row, column)
        byte = place.data_byte - row * place.geometry.row_bytes
        assert engine.eval(f"model.byte({place.data_byte})") == q.row.data[0, byte]
        assert engine.eval(f"model.scale({place.scale[0]}, {place.scale[1]})") == q.row.scales[0, place.scale[1]]
        assert f"tiled_128x4 byte {place.scale_byte(LAYOUTS['tiled_128x4'])} " in engine.eval(
            f"M.sentence(model, {row}, {column})"
        )


@pytest.mark.rule("GLB-1")
def test_the_maximum_counts_only_numbers_that_are_left(engine: MiniRacer) -> None:
    """A number of the list that was replaced everywhere is not the maximum any more."""
    engine.eval("globalThis.x = M.tensor(2, 2, '1 9 2', 'float32');")  # 1 9 2 1
    assert engine.eval("x.largest()") == 9
    engine.eval("x.set(1, 3);")
    assert engine.eval("x.largest()") == 3
    engine.eval("x.set(0, -0.5); x.set(1, 0); x.set(2, 0);")
    assert engine.eval("x.largest()") == 1


@pytest.mark.rule("NUM-3")
def test_float16_of_the_script(engine: MiniRacer) -> None:
    rng = np.random.default_rng(6)
    exact = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    between = ((exact[1:].astype(np.float64) + exact[:-1]) / 2).astype(np.float32)
    near = np.concatenate([between, np.nextafter(between, np.float32(np.inf)), np.float32([65519.99, 65520, 1e-8])])
    bits = rng.choice(near, 4000).view(np.uint32)
    bits = np.concatenate([bits, np.float32([65519.99, 65520, -65520, 2**-25, 1.5 * 2**-25, -0.0]).view(np.uint32)])
    got = json.loads(
        engine.eval(
            f"JSON.stringify({bits.tolist()}.map((b) => M.numerics.bits(M.numerics.float16(M.numerics.fromBits(b)))))"
        )
    )
    with np.errstate(over="ignore"):
        assert got == bits.view(np.float32).astype(np.float16).astype(np.float32).view(np.uint32).tolist()


def test_a_comma_inside_a_number_is_refused(engine: MiniRacer) -> None:
    """ "1,5" may be one number or two; the page does not guess."""
    with pytest.raises(Exception, match="write a space"):
        engine.eval("M.tensor(1, 2, '1,5 2', 'float32')")
    assert [engine.eval(f"M.tensor(1, 3, '1.5, 2; 3', 'float32').at({i})") for i in range(3)] == [1.5, 2, 3]


def test_places_of_the_script(engine: MiniRacer) -> None:
    rng = np.random.default_rng(4)
    for name in NAMES:
        for direction in ("row", "column"):
            shape = 16 * int(rng.integers(1, 9)), int(rng.integers(1, 130))
            settings = {
                "spec": name,
                "direction": direction,
                "layout": "tiled_128x4",
                "rows": shape[0],
                "columns": shape[1],
            }
            engine.eval(f"globalThis.model = M.build({json.dumps(settings)}, new Float32Array({shape[0] * shape[1]}));")
            for _ in range(5):
                element = int(rng.integers(shape[0])), int(rng.integers(shape[1]))
                place = Geometry(fp4ref.profiles[name], shape, direction).place(*element)
                sentence = engine.eval(f"M.sentence(model, {element[0]}, {element[1]})")
                ours = place.sentence(("linear", "tiled_128x4")).replace("tiled byte", "tiled_128x4 byte")
                assert sentence.rpartition(" in tile ")[0] == ours


def test_refusals_name_the_rule(engine: MiniRacer) -> None:
    base = {"spec": "nvfp4", "direction": "row", "layout": "linear", "rows": 16, "columns": 16, "dtype": "float32"}
    refused = [({"rows": 0}, "NUM-4"), ({"columns": 1.5}, "NUM-4"), ({"rows": 1 << 40}, "too large")]
    refused += [({"layout": "te.swizzled_rows"}, "LAY-15")]
    large = {"rows": 1 << 14, "columns": 1 << 14}
    assert engine.eval(f"M.refusal({json.dumps(base | large)})") == ""
    refused += [({"spec": "nvfp4-rht", "direction": "column", "dtype": "bfloat16"} | large, "too large")]
    refused += [({"spec": "nvfp4-rht", "direction": "column"}, "HAD-5")]
    refused += [({"spec": "nvfp4-rht", "direction": "column", "rows": 20, "dtype": "bfloat16"}, "HAD-5")]
    assert engine.eval(f"M.refusal({json.dumps(base)})") == ""
    for change, said in refused:
        assert said in engine.eval(f"M.refusal({json.dumps(base | change)})")


@pytest.mark.rule("NUM-3")
def test_numbers_are_read_and_written_as_float32(engine: MiniRacer) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 1 << 32, 300, dtype=np.uint32).view(np.float32)
    for value in values[np.isfinite(values)]:
        text = engine.eval(f"M.decimal(M.numerics.fromBits({int(value.view(np.uint32))}))")
        assert np.float32(text).view(np.uint32) == value.view(np.uint32)
        assert engine.eval(f"M.numerics.bits(M.parse('{value!s}'))") == int(value.view(np.uint32))
    assert engine.eval("M.parse('one')") is None
    assert engine.eval("M.parse('1e39')") is None
    assert engine.eval("M.parse('0x40490fdb')") == np.float32(np.pi)


def test_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    text = html()
    assert html() == text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|https?://", text)
    result = CliRunner().invoke(main, ["explore", "-o", str(tmp_path / "where.html")])
    assert result.exit_code == 0
    assert (tmp_path / "where.html").read_text(encoding="utf-8") == text


def test_every_own_specification_is_offered() -> None:
    assert [spec.name for spec in STANDARD if offered(spec)] == NAMES == [spec.name for spec in STANDARD]
    assert not offered(fp4ref.profiles["torchao.nvfp4_2lvl"])
    assert not offered(fp4ref.profiles["fouroversix.nvfp4_mse"])


@pytest.fixture
def browser(chromium: Any, tmp_path: Path) -> Any:
    """The explorer, just opened."""
    page = tmp_path / "explorer.html"
    page.write_text(html(), encoding="utf-8")
    chromium.get(page.as_uri())
    yield chromium
    assert not [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]


def test_browser_has_the_bits_of_the_model(browser: Any) -> None:
    numbers = range(1000, 1220)
    for start in numbers[::55]:
        batch = [arguments(number) for number in range(start, start + 55)]
        found = browser.execute_script(f"const run = {RUN}; return arguments[0].map((one) => run(...one));", batch)
        for number, text in zip(range(start, start + 55), found, strict=True):
            same_bytes(number, json.loads(text))


def test_browser_follows_pointer_and_keys(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def find(selector: str) -> Any:
        return browser.find_element(By.CSS_SELECTOR, selector)

    assert find("#where").text.startswith("element (37, 130) of a K = 256 NVFP4 tensor: data byte 4801 low nibble")
    assert "linear byte 600, tiled_128x4 byte 1108 in tile 2" in find("#where").text
    find('#matrix [data-key="37,130"]').click()
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN).perform()
    assert find("#where").text.startswith("element (38, 131)")
    assert browser.switch_to.active_element.get_attribute("data-key") == "38,131"
    assert "high nibble" in find("#where").text
    byte = find("#data .chosen")
    assert byte.find_element(By.TAG_NAME, "u").text == byte.text[0]
    find('#tiled [data-key="1028"]').click()
    assert "scale (32, 8)" in find("#where").text
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert "scale (32, 9)" in find("#where").text
    find('#data [data-key="4169"]').click()
    assert "data byte 4169" in find("#where").text
    ActionChains(browser).move_to_element(find('#linear [data-key="520"]')).perform()
    assert "scale (32, 8)" in find("#hover").text
    assert find('#tiled [data-key="1028"]').get_attribute("class").endswith("hovered")


def test_browser_shows_padding_refusals_and_own_values(browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def find(selector: str) -> Any:
        return browser.find_element(By.CSS_SELECTOR, selector)

    def enter(selector: str, text: str) -> None:
        browser.execute_script("arguments[0].value = ''", find(selector))
        find(selector).send_keys(text, Keys.TAB)

    enter("#rows", "20")
    enter("#columns", "40")
    find('#tiled [data-key="3"]').click()
    assert "padding" in find("#where").text
    enter("#values", "0.75 1.75 3.5 -0 6 nan")
    find('#matrix [tabindex="0"]').send_keys(Keys.HOME)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    row, column = map(int, re.match(r"element \((\d+), (\d+)\)", find("#where").text).groups())
    assert column == 1
    x = np.resize(np.float32([0.75, 1.75, 3.5, -0.0, 6.0, np.nan]), (20, 40))
    code = unpack(fp4ref.quantize(x, "nvfp4").row.data, 40, fp4ref.E2M1)[row, column]
    shown = [
        [cell.text for cell in line.find_elements(By.TAG_NAME, "td")]
        for line in browser.find_elements(By.CSS_SELECTOR, "#steps tbody tr")
    ]
    assert {line[0]: line[2] for line in shown}["code"] == f"0x{code:x}"
    enter("#value", "-2.5")
    assert "-2.5" in find("#steps tbody tr").text
    enter("#values", "1 two")
    assert "NUM-3" in find("#problem").text
    enter("#values", "1 2")
    assert not find("#problem").text
    enter("#rows", "99999999999999")
    assert "too large" in find("#problem").text
    for stale in ("#where", "#worked", "#steps tbody", "#matrix", "#tiled"):
        assert not find(stale).text
    enter("#rows", "20")
    for name in NAMES:
        browser.execute_script(
            "const s = document.getElementById('spec'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))",
            name,
        )
        assert find("#matrix-title").text.startswith("x [20, 40]")


def test_browser_goes_to_rows_follows_links_and_compares(browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def find(selector: str) -> Any:
        return browser.find_element(By.CSS_SELECTOR, selector)

    def enter(selector: str, text: str) -> None:
        browser.execute_script("arguments[0].value = ''", find(selector))
        find(selector).send_keys(text, Keys.TAB)

    enter("#rows", "28672")
    enter("#columns", "8192")
    enter("#row", "20000")
    enter("#column", "8000")
    place = Geometry(fp4ref.NVFP4, (28672, 8192)).place(20000, 8000)
    assert f"data byte {place.data_byte} low nibble" in find("#where").text
    assert find("#worked").text == place.sums(("tiled_128x4",))[0].replace("tiled byte", "tiled_128x4 byte")
    enter("#row", "28672")
    assert "NUM-4" in find("#problem").text
    enter("#row", "3")
    assert not find("#problem").text
    enter("#values", "1 2.5 3")
    enter("#value", "0,75")
    link = browser.execute_script("return location.hash")
    browser.execute_script("location.hash = '#spec=mxfp4&shape=32x64&element=1,2&dtype=float16&compare=nvfp4'")
    assert find("#where").text.startswith("element (1, 2) of a K = 64 MXFP4 tensor")
    assert find("#dtype").get_attribute("value") == "float16"
    assert find("#difference").text.startswith("First step that differs between MXFP4 and NVFP4")
    assert len(find("#steps tr.first").find_elements(By.TAG_NAME, "td")) == 7
    browser.execute_script("location.hash = arguments[0]", link)
    assert find("#where").text.startswith("element (3, 8000) of a K = 8192 NVFP4 tensor")
    assert find("#values").get_attribute("value") == "1 2.5 3"
    assert find("#value").get_attribute("value") == "0.75"


def test_rules_are_links_where_the_site_has_their_pages() -> None:
    assert '"site":"rules/"' in html("rules/")
    assert '"site":""' in html()
    assert set(TABLES["rules"]) == set(rules.defined())


def test_browser_labels_and_screenshots(browser: Any, tmp_path: Path) -> None:
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('input, select, [role=grid], [role=gridcell]')].filter((one) =>"
        " !(one.labels?.length || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby'))).length"
    )
    assert unnamed == 0
    reachable = browser.execute_script(
        "return [...document.querySelectorAll('[role=grid]')].map((g) => g.querySelectorAll('[tabindex=\"0\"]').length)"
    )
    assert reachable == [1, 1, 1, 1]
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert browser.save_screenshot(str(tmp_path / "light.png"))
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    assert browser.save_screenshot(str(tmp_path / "dark.png"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
