"""Bytes from elsewhere: SECURITY.md lists every place where they become objects, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rooms import FILES, ROOT, name_of, tree

PARSERS = {
    *("csv.DictReader", "csv.reader", "gzip.open", "json.load", "json.loads", "np.memmap"),
    *("np.lib.format.open_memmap", "np.lib.format.read_array", "np.load", "Image.open", "struct.unpack"),
    *("pillow.open", "load_pem_private_key", "load_pem_public_key", "onnx.ModelProto.FromString", "torch.load"),
    *("onnxruntime.InferenceSession", "parquet.ParquetFile", "pickle.load", "pickle.loads", "pickle.Unpickler"),
    *("pickletools.genops", "safetensors.torch.load", "safe_open", "tarfile.open", "tomllib.load", "tomllib.loads"),
    *("zipfile.ZipFile", "FlowerError.from_json", "literal_eval", "ast.literal_eval", "load_ssh_public_key"),
    *("load_ssh_private_key", "x509.load_pem_x509_certificate", "ec.EllipticCurvePublicKey.from_encoded_point"),
    *("pull_and_inflate_object_from_tree", "struct.unpack_from", "zlib.decompressobj", "loadmat", "load_file"),
    *("torch.from_file", "ssl.create_default_context", "parsedate_to_datetime", "base64.b64decode", "zlib.decompress"),
}
"""what turns bytes or text into objects, as code calls it"""
ROW = re.compile(r"^\| ([^|]+) \| `([\w/]+\.py)`: ([^|]+) \| [^|]+ \| ([^|]+) \|$")


def parsers_in(path: Path) -> set[str]:
    called = {ast.unparse(n.func) for n in ast.walk(tree(path)) if isinstance(n, ast.Call)}
    bases = {ast.unparse(b) for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef) for b in n.bases}
    return (called | bases) & PARSERS


def table_rows() -> list[re.Match[str]]:
    lines = (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    return [match for line in lines if (match := ROW.match(line))]


def listed() -> dict[str, set[str]]:
    parsers: dict[str, set[str]] = {}
    for row in table_rows():
        parsers.setdefault(row[2], set()).update(re.findall(r"`([\w.]+)`", row[3]))
    return parsers


def test_every_parser_is_in_the_list_of_security() -> None:
    called = {name_of(path): parsers for path in FILES if (parsers := parsers_in(path))}
    assert listed() == called


def test_every_parser_of_foreign_bytes_has_a_fuzzer_or_a_reason() -> None:
    rows = table_rows()
    assert len(rows) > 40
    bare = [row[1] for row in rows if "(own)" not in row[1] and not re.search(r"make fuzz: |not fuzzed: ", row[4])]
    assert bare == []


def test_the_list_names_fuzzers_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("## Bytes from elsewhere")[1].split("\n## ")[0]
    for name in set(re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text)):
        assert (ROOT / name).exists(), name
    targets = set(re.findall(r"make fuzz: ([\w, ]+)", text))
    guided = (ROOT / "tests" / "fuzz" / "guided.py").read_text(encoding="utf-8")
    assert targets
    assert all(f'"{name}": (' in guided for each in targets for name in each.split(", "))
