"""Damage copies of a good adapter directory, for tests of the checks.

DAMAGES["a pipe for the weights"](folder)     each damage makes an adapter that must be refused
change_anything(folder, chance)               the adapter may still be right
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from daemon.adapters.directory import CONFIG, PROVENANCE, WEIGHTS

Damage = Callable[[Path], object]
Header = dict[str, Any]

SLOW_PATTERN: Final = r"([a-z0-9._]+)+!"
"""Pattern that matches no layer's name; a backtracking engine needs 2^n steps to find that out."""

_LENGTH_BYTES: Final = 8
_SETTINGS: Final = (
    "r", "lora_alpha", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern",
    "rank_pattern", "alpha_pattern", "use_rslora", "bias", "peft_type", "modules_to_save",
    "init_lora_weights", "lora_dropout", "fan_in_fan_out", "base_model_name_or_path", "revision",
)  # fmt: skip
_VALUES: Final[tuple[str, ...]] = (
    "null", "true", "false", "0", "-1", "1", "8", "1000000000", "1e308", "1e999", "-1e999", "NaN",
    "1.5", "9" * 401, "9" * 5000, "9223372036854775808", '""', '"q_proj"', '"\\ud800"', '"\\u0000"',
    '"LORA"', '".*"', '"(a+)+$"', json.dumps(SLOW_PATTERN), '"(?=q)q_proj"', '"("', "[]", "[0]",
    "[null]", '["q_proj"]', '[["q_proj"]]', "{}", '{"q_proj": 4}', '{"q_proj": "4"}', '{"": 1}',
    '{"q_proj": 1e9}', '{"(": 4}', "{" + f'"{SLOW_PATTERN}": 4' + "}", '{"a": {"b": {}}}',
    "[" * 900 + "]" * 900, "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500,
)  # fmt: skip


def write_setting(folder: Path, name: str, text: str) -> None:
    """Set a field of the adapter's configuration to `text`, which may be invalid JSON."""
    config = json.loads((folder / CONFIG).read_bytes())
    marked = json.dumps(config | {name: "@@"})
    (folder / CONFIG).write_bytes(marked.replace('"@@"', text).encode("utf-8", "surrogatepass"))


def _set(name: str, text: str) -> Damage:
    return lambda folder: write_setting(folder, name, text)


def _write(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def _replace(name: str, make: Callable[[Path], object]) -> Damage:
    def replace(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return replace


def _link_to_copy(path: Path) -> None:
    elsewhere = path.with_name(f"other-{path.name}")
    elsewhere.write_bytes(b"{}")
    path.symlink_to(elsewhere)


def _grow(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def read_header(folder: Path) -> tuple[Header, bytes]:
    """Return (header, bytes of the numbers) of an adapter's weights file."""
    content = (folder / WEIGHTS).read_bytes()
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header: Header = json.loads(content[_LENGTH_BYTES:end])
    return header, content[end:]


def write_header(folder: Path, header: str | bytes, numbers: bytes, length: int = -1) -> None:
    """Write a weights file; `header` may be invalid, `length` is its stated length (-1: true)."""
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    said = (len(raw) if length < 0 else length).to_bytes(_LENGTH_BYTES, "little")
    (folder / WEIGHTS).write_bytes(said + raw + numbers)


def _change_header(change: Callable[[Header, str], object]) -> Damage:

    def damage(folder: Path) -> None:
        header, numbers = read_header(folder)
        change(header, next(name for name in header if name.endswith("lora_A.weight")))
        write_header(folder, json.dumps(header), numbers)

    return damage


def _rename(name: str) -> Damage:
    return _change_header(lambda header, first: header.update({name: header.pop(first)}))


def _write_twice(folder: Path) -> None:
    header, numbers = read_header(folder)
    text = json.dumps(header)
    write_header(folder, text[:-1] + ", " + text[1:], numbers)


def _fill(number: bytes) -> Damage:
    def damage(folder: Path) -> None:
        header, numbers = read_header(folder)
        write_header(folder, json.dumps(header), number + numbers[len(number) :])

    return damage


def _lengthen_header(length: int) -> Damage:
    def damage(folder: Path) -> None:
        header, numbers = read_header(folder)
        write_header(folder, json.dumps(header), numbers, length)

    return damage


def _repeat_name(folder: Path) -> None:
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text.rstrip()[:-1] + ', "r": 4}')


DAMAGES: Final[Mapping[str, Damage]] = {
    "no configuration": lambda folder: (folder / CONFIG).unlink(),
    "an empty configuration": _write(CONFIG, b""),
    "half a configuration": _write(CONFIG, b'{"peft_type": "LORA", '),
    "a list for a configuration": _write(CONFIG, b"[]"),
    "a number for a configuration": _write(CONFIG, b"5"),
    "null for a configuration": _write(CONFIG, b"null"),
    "a configuration that is no UTF-8": _write(CONFIG, b'{"peft_type": "\xff"}'),
    "a configuration in UTF-16": _write(CONFIG, '{"peft_type": "LORA"}'.encode("utf-16")),
    "a configuration of 2 MiB": _write(CONFIG, b" " * (2 << 20) + b"{}"),
    "lists within lists": _write(CONFIG, b"[" * 100_000),
    "objects within objects": _write(CONFIG, b'{"a":' * 400 + b"1" + b"}" * 400),
    "a name that is written twice": _repeat_name,
    "half a pair of surrogates": _set("base_model_name_or_path", '"\\ud800"'),
    "a number of 5,000 digits": _set("r", "9" * 5000),
    "a configuration of another kind": _set("peft_type", '"NOT_A_KIND"'),
    "a kind that is a list": _set("peft_type", '["LORA"]'),
    "a rank of a billion": _set("r", "1000000000"),
    "a rank of 401 digits": _set("r", "9" * 401),
    "a rank below one": _set("r", "0"),
    "a rank in words": _set("r", '"8"'),
    "a rank that is true": _set("r", "true"),
    "a rank with a fraction": _set("r", "8.0"),
    "an alpha that is no number": _set("lora_alpha", "NaN"),
    "an alpha that is read as infinity": _set("lora_alpha", "1e999"),
    "targets that are a number": _set("target_modules", "5"),
    "targets that are an object": _set("target_modules", '{"q_proj": 1}'),
    "a target that is null": _set("target_modules", "[null]"),
    "targets that are nothing": _set("target_modules", "null"),
    "excluded modules that are a number": _set("exclude_modules", "1"),
    "numbers of layers in words": _set("layers_to_transform", '["0"]'),
    "a prefix of layers that is a number": _set("layers_pattern", "5"),
    "ranks of layers in a list": _set("rank_pattern", "[1]"),
    "a rank of a layer that is a list": _set("rank_pattern", '{"q_proj": [8]}'),
    "alphas of layers in a text": _set("alpha_pattern", '"q_proj"'),
    "a switch that is a text": _set("use_rslora", '"yes"'),
    "a pattern of targets that takes for ever": _set("target_modules", json.dumps(SLOW_PATTERN)),
    "a pattern with a look ahead": _set("target_modules", '"(?=q)q_proj"'),
    "a pattern that refers back": _set("target_modules", r'"(q)\\1_proj"'),
    "half a pattern": _set("target_modules", '"(q_proj"'),
    "a pattern that is too large": _set("target_modules", '"((a{1000}){1000}){1000}"'),
    "half a pattern of ranks": _set("rank_pattern", '{"(": 8}'),
    "patterns of ranks without end": _set(
        "rank_pattern", json.dumps({f"(a?){{900}}{number}": 8 for number in range(20_000)})
    ),
    "a pipe for the configuration": _replace(CONFIG, os.mkfifo),
    "a pipe for the weights": _replace(WEIGHTS, os.mkfifo),
    "a pipe for the provenance": _replace(PROVENANCE, os.mkfifo),
    "a directory for the weights": _replace(WEIGHTS, lambda path: path.mkdir()),
    "a directory for the configuration": _replace(CONFIG, lambda path: path.mkdir()),
    "a link for the configuration": _replace(CONFIG, _link_to_copy),
    "a link for the weights": _replace(WEIGHTS, _link_to_copy),
    "a link to a device": _replace(WEIGHTS, lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _replace(WEIGHTS, lambda path: path.symlink_to(path)),
    "a link to nothing": _replace(CONFIG, lambda path: path.symlink_to("nowhere")),
    "weights of a terabyte": _replace(WEIGHTS, _grow),
    "a provenance that is no JSON": _write(PROVENANCE, b"{"),
    "a provenance of a terabyte": _replace(PROVENANCE, _grow),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "an empty file of weights": _write(WEIGHTS, b""),
    "a header of gigabytes": _lengthen_header(1 << 33),
    "a header of 2^64 bytes": _lengthen_header((1 << 64) - 1),
    "a header that is cut": _lengthen_header(20),
    "a header of lists within lists": lambda folder: write_header(folder, "[" * 100_000, b""),
    "a header that is no UTF-8": lambda folder: write_header(folder, b'{"\xff": 1}', b""),
    "weights without a header": lambda folder: write_header(folder, "{}", b""),
    "a weight that is written twice": _write_twice,
    "a shape of 2^63 rows": _change_header(
        lambda header, first: header[first].update(shape=[2**63, 1])
    ),
    "a shape below nothing": _change_header(lambda header, first: header[first].update(shape=[-1])),
    "a shape of 500 axes": _change_header(
        lambda header, first: header[first].update(shape=[1] * 500)
    ),
    "offsets beyond the file": _change_header(
        lambda header, first: header[first].update(data_offsets=[0, 2**62])
    ),
    "offsets that are turned": _change_header(
        lambda header, first: header[first].update(data_offsets=[64, 0])
    ),
    "numbers of an unknown type": _change_header(
        lambda header, first: header[first].update(dtype="F1024")
    ),
    "whole numbers": _change_header(lambda header, first: header[first].update(dtype="I32")),
    "a weight with a line break in its name": _rename("base_model.model.a\nb.lora_A.weight"),
    "a weight of another folder": _rename("../../base_model.model.x.lora_A.weight"),
    "a weight with 99,999 dots": _rename(f"base_model.model.{'.' * 99_999}.lora_A.weight"),
    "a weight of half a pair": _rename("base_model.model.x.lora_A.weight\ud800"),
    "a weight that is no number": _fill(b"\x00\x00\xc0\x7f"),
    "a weight that is infinite": _fill(b"\x00\x00\x80\x7f"),
    "a weight beyond half precision": _fill(b"\x00\x00\x80\x47"),
}  # fmt: skip


def copy_with_damage(source: Path, folder: Path, name: str) -> Path:
    """Copy an adapter, apply the damage `name`, and return the copy."""
    shutil.copytree(source, folder)
    DAMAGES[name](folder)
    return folder


def change_anything(folder: Path, chance: random.Random) -> None:
    """Change a setting or some bytes at random; the adapter may still be valid."""
    if chance.random() < 0.6:
        write_setting(folder, chance.choice(_SETTINGS), chance.choice(_VALUES))
        return
    path = folder / chance.choice((CONFIG, WEIGHTS))
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 4)):
        # The file begins with the header, which describes the rest.
        at = chance.randrange(chance.choice((64, len(content))))
        content[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    path.write_bytes(content)
