from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from burnish.core.config import Config, build, effective, json_schema, problem, provenance, walk_keys
from burnish.core.config_tree import Tree, apply_overrides, key_text, load_tree
from burnish.core.errors import ConfigError


class Warm(Config):
    kind: Literal["warm"]
    """Warm."""
    degrees: float = Field(default=20.0, gt=0)
    """Temperature; 10 to 30."""
    pulses: int = 0
    """Pulses; 0 is off."""
    pulse_seconds: float = 1.0
    """Length of a pulse, seconds."""

    def inert(self) -> dict[str, str]:
        return {} if self.pulses else {"pulse_seconds": "pulses=0 gives none"}


class Cold(Config):
    kind: Literal["cold"]
    """Cold."""
    degrees: float
    """Temperature; -10 to 10."""


class Sensor(Config):
    name: str
    """Name of the sensor."""


class Oven(Config):
    """A small recipe with every shape that the real one has."""

    name: str = Field(min_length=1)
    """Name of the oven."""
    size: int = Field(default=4, ge=1)
    """Size, litres; 1 to 100."""
    fan: bool | Literal["auto"] = "auto"
    """Whether the fan runs."""
    stages: Annotated[tuple[Annotated[Warm | Cold, Field(discriminator="kind")], ...], Field(strict=False)] = ()
    """What happens, in order."""
    sensors: Annotated[tuple[str | Sensor, ...], Field(strict=False)] = ()
    """Sensors by name."""
    spare: Sensor | None = None
    """Another sensor, or null."""


RECIPE = """\
# an oven
name: small
stages:
  - kind: warm
    degrees: 1e1
  - kind: cold
    degrees: -4
sensors: [door, {name: floor}]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "oven.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def failing(path: Path, *overrides: str, cls: type[Config] = Oven) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(cls, apply_overrides(load_tree(path), overrides))
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("  where: ")
    assert lines[2].startswith("  fix:   ")
    assert caught.value.exit_code == 2
    return caught.value


def test_reads_yaml_1_2(recipe: Path) -> None:
    oven = build(Oven, load_tree(recipe))
    assert oven.stages == (Warm(kind="warm", degrees=10.0), Cold(kind="cold", degrees=-4))
    assert oven.sensors == ("door", Sensor(name="floor"))
    text = recipe.read_text(encoding="utf-8").replace("name: small", "name: on\nsize: 010")
    recipe.write_text(text, encoding="utf-8")
    oven = build(Oven, load_tree(recipe))  # in YAML 1.1 these are true and 8
    assert (oven.name, oven.size) == ("on", 10)


def test_misspelt_key_gets_the_nearest_and_its_line(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("degrees: 1e1", "degreees: 1e1"), encoding="utf-8")
    error = failing(recipe)
    assert error.what == "unknown key 'degreees' in stages[0]"
    assert error.where == f"{recipe}:5, stages[0].degreees"
    assert error.fix == "write degrees"


def test_misspelt_key_comes_before_the_key_it_leaves_missing(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("name: small", "nmae: small"), encoding="utf-8")
    error = failing(recipe)
    assert error.what == "unknown key 'nmae' in the recipe (and 1 more: name)"


def test_key_of_another_section_is_sent_there(recipe: Path) -> None:
    assert failing(recipe, "degrees=3").fix == "move it to stages.degrees"


def test_key_like_no_other_lists_the_known_ones(recipe: Path) -> None:
    assert failing(recipe, "stages.1.zzz=1").fix == "remove it; stages[1] takes kind, degrees"


@pytest.mark.parametrize(
    ("assignment", "what", "fix"),
    [
        ("size=eight", "size='eight' is not an integer", "give an integer: Size, litres"),
        ("size=4.0", "size=4.0 is not an integer", "give an integer: Size, litres"),
        ("size='4'", "size='4' is not an integer", "give an integer: Size, litres"),
        ("size=true", "size=True is not an integer", "give an integer: Size, litres"),
        ("size=0", "size=0 is not at least 1", "give at least 1: Size, litres"),
        ("name=", "name=None is not text", "give text: Name of the oven"),
        ("name=3", "name=3 is not text", "give text: Name of the oven"),
        (
            "fan=maybe",
            "fan='maybe' is not true or false or 'auto'",
            "give true or false or 'auto': Whether the fan runs",
        ),
        (
            "stages.0.degrees=.nan",
            "stages[0].degrees=nan is not a finite number",
            "give a finite number: Temperature",
        ),
        (
            "stages.0.degrees=-.inf",
            "stages[0].degrees=-inf is not a finite number",
            "give a finite number: Temperature",
        ),
        ("stages.0.kind=wram", "stages[0].kind='wram' is none of warm, cold", "write warm"),
        ("stages.0.kind=xyz", "stages[0].kind='xyz' is none of warm, cold", "write one of warm, cold"),
        (
            "stages.0=3",
            "stages[0]=3 is not a mapping of keys",
            "give a mapping of keys: What happens, in order",
        ),
        ("stages=warm", "stages='warm' is not a list", "give a list: What happens, in order"),
        ("stages=[{degrees: 3}]", "stages[0] has no kind", "add kind, one of warm, cold"),
        ("stages.1={kind: cold}", "stages[1].degrees is missing", "add degrees: Temperature"),
        ("sensors.1.nam=x", "unknown key 'nam' in sensors[1]", "write name"),
        ("spare.nam=x", "unknown key 'nam' in spare (and 1 more: spare.name)", "write name"),
        ("spare=3", "spare=3 is not a mapping of keys", "give a mapping of keys: Another sensor, or null"),
    ],
)
def test_wrong_values_name_key_value_and_want(recipe: Path, assignment: str, what: str, fix: str) -> None:
    error = failing(recipe, assignment)
    assert (error.what, error.fix) == (what, fix)
    assert error.where.startswith(f"--set {assignment}, ")


def test_wrong_type_in_the_file_names_its_line(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("degrees: -4", "degrees: minus four"), encoding="utf-8")
    error = failing(recipe)
    assert error.what == "stages[1].degrees='minus four' is not a number"
    assert error.where == f"{recipe}:7, stages[1].degrees"


def test_key_without_effect_is_refused_only_where_it_was_written(recipe: Path) -> None:
    error = failing(recipe, "stages.0.pulse_seconds=1.0")  # its default, and still without effect
    assert error.what == "stages[0].pulse_seconds=1.0 has no effect: pulses=0 gives none"
    tree = apply_overrides(load_tree(recipe), ["stages.0.pulse_seconds=2", "stages.0.pulses=1"])
    assert build(Oven, tree).stages[0] == Warm(kind="warm", degrees=10, pulses=1, pulse_seconds=2)


def test_a_validators_problem_has_its_own_fix(recipe: Path) -> None:
    class Strict(Oven):
        def inert(self) -> dict[str, str]:
            if self.size > 9:
                raise problem("size", "{path}=9 fills the room", "shrink it")
            return {}

    error = failing(recipe, "size=10", cls=Strict)
    assert (error.what, error.where, error.fix) == (
        "size=9 fills the room",
        "--set size=10, size",
        "shrink it",
    )


@pytest.mark.parametrize(
    ("content", "what", "line"),
    [
        (b"", "the file holds no keys", ""),
        (b"# nothing\n\n", "the file holds no keys", ""),
        (b"- a\n- b\n", "a recipe is a mapping of keys to values, not a list", ":1"),
        (b"just words\n", "a recipe is a mapping of keys to values, not a text", ":1"),
        (b"name: a\nsize: 2\nname: b\n", "the key 'name' is written twice", ":3"),
        (b"name: a\nsensors:\n  - b\xe9\n", "byte 0xe9 is not UTF-8", ":3"),
        (b"name: a\n  size: 3\n", "not YAML: mapping values are not allowed here", ":2"),
        (b"name: [a\nsize: 3\n", "not YAML: ", ":2"),
        (b"name: a\n3: b\n", "the key 3 is not text", ":2"),
        (b"name: 2026-11-01\n", "name is a date, which no key takes", ":1"),
        (b"name: " + b"[" * 25 + b"]" * 25, "more than 20 levels or 5000 values", ""),
        (b"name: " + b"[" * 400 + b"]" * 400, "not YAML: ", ""),
        (b"name: a\x00b\n", "not YAML: ", ""),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, content: bytes, what: str, line: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    error = failing(path)
    assert error.what.startswith(what)
    assert error.where == f"{path}{line}"
    assert path.read_bytes() == content


def test_aliases_that_multiply_end(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert failing(path).fix == "nest less, and remove aliases (*name)"


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert failing(tmp_path / "none.yaml").what == f"there is no file {tmp_path / 'none.yaml'}"
    assert failing(tmp_path).what.startswith(f"cannot read {tmp_path}")


def test_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert build(Oven, load_tree(path)).name == "a"


@pytest.mark.parametrize(
    ("assignment", "what"),
    [
        ("size", "'size' is not KEY=VALUE"),
        ("=3", "'=3' is not KEY=VALUE"),
        ("a..b=3", "'a..b=3' is not KEY=VALUE"),
        ("stages.2.degrees=3", "stages has 2 entries, none at '2'"),
        ("stages.first.degrees=3", "stages has 2 entries, none at 'first'"),
        ("name.first=3", "name is 'small', without keys"),
        ("size=[1", "not YAML"),
    ],
)
def test_overrides_that_fit_nowhere(recipe: Path, assignment: str, what: str) -> None:
    error = failing(recipe, assignment)
    assert error.what.startswith(what)
    assert error.where.startswith(f"--set {assignment}")


def test_override_makes_the_way_to_its_key(recipe: Path) -> None:
    tree = apply_overrides(load_tree(recipe), ["spare.name=x", "stages[0].degrees=3", "stages.0.degrees=1e-1"])
    oven = build(Oven, tree)
    assert oven.spare == Sensor(name="x")
    assert oven.stages[0] == Warm(kind="warm", degrees=0.1)  # the later one wins
    assert load_tree(recipe).data["stages"][0]["degrees"] == 10.0


def test_provenance_names_file_override_and_default(recipe: Path) -> None:
    tree = apply_overrides(load_tree(recipe), ["stages.1.degrees=-5", "spare={name: x}"])
    origins = provenance(build(Oven, tree), tree)
    assert origins == {
        "name": f"{recipe}:2",
        "size": "default",
        "fan": "default",
        "stages.0.kind": f"{recipe}:4",
        "stages.0.degrees": f"{recipe}:5",
        "stages.0.pulses": "default",
        "stages.1.kind": f"{recipe}:6",
        "stages.1.degrees": "--set stages.1.degrees=-5",
        "sensors.0": f"{recipe}:8",
        "sensors.1.name": f"{recipe}:8",
        "spare.name": "--set spare={name: x}",
    }


ovens = st.builds(
    Oven,
    name=st.text(min_size=1),
    size=st.integers(1, 10**6),
    fan=st.sampled_from([True, False, "auto"]),
    stages=st.lists(
        st.one_of(
            st.builds(Warm, kind=st.just("warm"), degrees=st.floats(1e-9, 1e9)),
            st.builds(Warm, kind=st.just("warm"), pulses=st.integers(1, 9), pulse_seconds=st.floats(0, 1)),
            st.builds(Cold, kind=st.just("cold"), degrees=st.floats(-1e9, 1e9)),
        )
    ).map(tuple),
    sensors=st.lists(st.one_of(st.text(), st.builds(Sensor, name=st.text()))).map(tuple),
    spare=st.one_of(st.none(), st.builds(Sensor, name=st.text())),
)


@given(oven=ovens)
def test_effective_data_builds_an_equal_config(oven: Oven) -> None:
    assert build(Oven, Tree(effective(oven))) == oven


def test_schema_carries_the_docstrings() -> None:
    schema = json_schema(Oven)
    assert schema["properties"]["size"]["description"] == "Size, litres; 1 to 100."
    assert schema["additionalProperties"] is False
    assert ("stages", "pulses") in set(walk_keys(Oven))


def test_key_text() -> None:
    assert key_text(("stages", 2, "rollout", "group_size")) == "stages[2].rollout.group_size"
