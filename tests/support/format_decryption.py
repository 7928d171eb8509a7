"""Decrypt an index folder of zonebloom, by the rules of docs/format.md alone."""

import base64
import hmac
import json
from pathlib import Path

import xxhash
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def decrypt(stored, name, keys):
    """Return the data of an encrypted file. ``name`` is its path below the index folder."""
    if stored[:8] != b"ZBSEALED":
        raise ValueError("not encrypted")
    key_id = stored[8:64].rstrip(b"\0")
    cipher = AESGCM(keys[key_id.decode()])
    starts = range(64, len(stored), 12 + 4096 + 16)
    data = b""
    for number, start in enumerate(starts):
        module = stored[start : start + starts.step]
        aad = b"%b\0%b\0%d\0%d" % (key_id, name.encode(), number, number == len(starts) - 1)
        data += cipher.decrypt(module[:12], module[12:], aad)
    return data


def decrypt_document(document, name, keys):
    """Return a document with its content in clear."""
    sealed = json.loads(document)["content"]
    key = keys[sealed["sealed_by"]]
    check = hmac.digest(key, b"zonebloom key check", "sha256")[:8].hex()
    if check != sealed["key_check"]:
        raise ValueError("another key")
    content = decrypt(base64.b64decode(sealed["content"]), name, keys)
    head, tail = b'{"format_version": 1, "checksum": "', b'",\n"content": %b}\n' % content
    return head + xxhash.xxh3_128_hexdigest(head + tail).encode() + tail


def decrypt_folder(source, target, keys):
    """Write a copy of an encrypted index folder in clear."""
    for path in sorted(Path(source).rglob("*.*")):
        name = path.relative_to(source).as_posix()
        convert = decrypt_document if path.suffix == ".json" else decrypt
        data = convert(path.read_bytes(), name, keys)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
