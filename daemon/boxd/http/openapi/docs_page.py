"""Protocol adapter only. The page `/docs`: the guide and the reference.

The daemon builds the page once, when it starts. The page loads nothing and has no scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from boxd.http.description.operation import Json

_PAGES = resources.files("boxd.http.openapi") / "pages"
_STYLE = (_PAGES / "style.css").read_text("utf-8")
_GUIDE = (_PAGES / "guide.html").read_text("utf-8")
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page."""
_CODE = re.compile(r"`([^`]+)`")
_CHAPTER = re.compile(r'<h2 id="([a-z]+)">([^<]+)</h2>')
_SHOWN_KEYS = {
    "bearer": "<code>Authorization</code>",
    "apiKey": "<code>X-Api-Key</code>",
    "queryKey": "<code>?key=</code>",
    "proxyCookie": "its cookie",
}


def page(document: Json) -> str:
    """Return the page as HTML, generated from an OpenAPI document."""
    families: dict[str, list[tuple[str, str, Json]]] = {
        family["name"]: [] for family in document["tags"]
    }
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method == "get" or "{port}" not in path:  # the proxy treats all methods alike
                families[operation["tags"][0]].append((path, method, operation))
    reference = "".join(
        f'<h2 id="ref-{escape(family.lower())}">{escape(family)}: reference</h2>\n'
        + "".join(_operation(document, *row) for row in rows)
        for family, rows in families.items()
        if rows
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document['info']['title'])}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{_contents(families)}<main>\n<h1>{escape(document['info']['title'])}</h1>\n"
        f"<p>{_prose(document['info']['description'])}</p>\n"
        '<p>For programs: <a href="v1/openapi.json">OpenAPI 3.1</a>.</p>\n'
        f"{_GUIDE}{reference}{_schemas(document)}</main>\n</body>\n</html>\n"
    )


def _contents(families: dict[str, list[tuple[str, str, Json]]]) -> str:
    guide = "".join(f'<a href="#{name}">{text}</a>\n' for name, text in _CHAPTER.findall(_GUIDE))
    parts = [f"<strong>Guide</strong>\n{guide}"]
    for family, rows in families.items():
        links = "".join(
            f'<a href="#{operation["operationId"]}">{escape(operation["summary"])}</a>\n'
            for _, _, operation in rows
        )
        parts.append(f"<strong>{escape(family)}</strong>\n{links}")
    parts.append('<strong>Values</strong>\n<a href="#schemas">Schemas</a>\n')
    return f"<nav>\n{''.join(parts)}</nav>\n"


def _operation(document: Json, path: str, method: str, operation: Json) -> str:
    keys = " or ".join(_SHOWN_KEYS[name] for way in operation["security"] for name in way)
    parts = [
        f'<h3 id="{operation["operationId"]}"><code class="verb {method}">{method}</code>'
        f"<code>{escape(path)}</code></h3>\n",
        f"<p><b>{escape(operation['summary'])}.</b> {_prose(operation['description'])}</p>\n",
        f'<p class="keys">{"Key: " + keys if keys else "No key"}.</p>\n',
    ]
    if "parameters" in operation:
        rows = [
            (
                f"<code>{escape(parameter['name'])}</code>",
                parameter["in"],
                _prose(parameter["description"]),
            )
            for parameter in operation["parameters"]
        ]
        parts.append(_table(("Parameter", "In", "Meaning"), rows))
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body <code>{escape(kind)}</code></p>\n{_example(content)}")
    parts.append(_responses(document, operation["responses"]))
    return "".join(parts)


def _responses(document: Json, responses: Json) -> str:
    rows, examples = [], []
    for status, entry in responses.items():
        name = entry.get("$ref", "").rpartition("/")[2]
        response = document["components"]["responses"][name] if name else entry
        rows.append((status, _prose(response["description"])))
        for kind, content in response.get("content", {}).items():
            if "example" in content:
                examples.append(f"<p>{status} <code>{escape(kind)}</code></p>\n{_example(content)}")
    return _table(("Status", "Meaning"), rows) + "".join(examples)


def _example(content: Json) -> str:
    if "example" not in content:
        return ""
    example = content["example"]
    text = example if isinstance(example, str) else json.dumps(example, indent=2)
    return f"<pre><code>{escape(text)}</code></pre>\n"


def _schemas(document: Json) -> str:
    parts = ['<h2 id="schemas">Schemas</h2>\n']
    for name, schema in document["components"]["schemas"].items():
        parts.append(f'<h3 id="schema-{name}">{name}</h3>\n<p>{_prose(schema["description"])}</p>')
        required = schema.get("required", [])
        rows = [
            (
                f"<code>{escape(field)}</code>",
                _kind(value) + ("" if field in required else ", optional"),
                _prose(value.get("description", "")),
            )
            for field, value in schema["properties"].items()
        ]
        parts.append(_table(("Field", "Type", "Meaning"), rows))
    return "".join(parts)


def _kind(schema: Json) -> str:
    """Return the type of a schema in a word or two, as HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(f"<code>{escape(word)}</code>" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return escape(str(schema.get("format") or schema.get("contentEncoding") or schema["type"]))


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table as HTML. The heads and the cells are already HTML."""
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>\n'


def _prose(text: str) -> str:
    """Return a text of the document as HTML. Backquotes become `<code>`."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))
