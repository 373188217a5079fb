"""Boxes, catalogs, canvases, and what needs no key."""

from __future__ import annotations

from boxd.api.described.parts import (
    NO_KEY,
    REFERENCE,
    WS,
    Json,
    answer,
    array,
    errors,
    operation,
    path,
    query,
    ref,
)

_REF = path(
    "ref",
    "A box by its name, by `workspace%2Fname`, by its id or by a beginning of it.",
    "web",
    pattern=REFERENCE,
)
_BOX: Json = {
    "id": "0f3a41c2d5e6978811223344556677ff",
    "name": "web",
    "image": "debian",
    "state": "running",
    "age_s": 12.5,
    "cpus": 1.0,
    "mem_mb": 512,
    "ref": "web",
    "flavor": "small",
    "detail": "",
    "attached": 1,
    "why": {"shell": 1},
    "created": "2026-01-02T03:04:05+00:00",
    "deadline": None,
    "grace_s": None,
    "clamped": False,
    "next": None,
    "memory": False,
    "durable": False,
    "auto_suspend": True,
    "pinned_until": None,
    "pin_why": "",
    "egress": "all",
    "disk_mb": 32768,
    "pids": 512,
    "drive": True,
    "confidential": False,
    "usage": None,
}


def _power(verb: str, about: str, state: str) -> Json:
    return operation(
        f"{verb}Box",
        "Boxes",
        f"{verb.capitalize()} a box",
        about,
        {
            "200": answer("Its state now.", ref("BoxState"), {"state": state}),
            **errors(404, 409, 413, 429, 507),
        },
        *(_REF, WS),
    )


PATHS: dict[str, Json] = {
    "/healthz": {
        "get": operation(
            *("health", "Service", "Whether the daemon answers", "The one path outside /v1."),
            {"200": answer("It does.", ref("Ok"), {"ok": True}), **errors(key=False)},
            security=NO_KEY,
        )
    },
    "/v1/boxes": {
        "get": operation(
            "listBoxes",
            "Boxes",
            "List boxes",
            "All boxes that the key reaches; with `ws` those of one workspace.",
            {"200": answer("The boxes.", array("Box"), [_BOX]), **errors()},
            WS,
        )
    },
    "/v1/boxes/{ref}": {
        "delete": operation(
            "removeBox",
            "Boxes",
            "Destroy a box",
            "With all that is in it, whatever holds it. /wrk stays.",
            {"204": answer("It is gone."), **errors(404, 409)},
            *(_REF, WS),
        )
    },
    "/v1/boxes/{ref}/suspend": {
        "post": _power(
            "suspend",
            "Its memory goes to disk, and nothing of it runs. 400 where the host cannot do it.",
            "suspended",
        )
    },
    "/v1/boxes/{ref}/resume": {
        "post": _power(
            "resume", "It runs on from its memory. 400 where the host cannot do it.", "running"
        )
    },
    "/v1/images": {
        "get": operation(
            *("listImages", "Catalogs", "List images", "What a box can start from."),
            {
                "200": answer(
                    "The images.",
                    array("Image"),
                    [{"name": "debian", "description": "Debian 12", "built": True}],
                ),
                **errors(),
            },
        )
    },
    "/v1/flavors": {
        "get": operation(
            *("listFlavors", "Catalogs", "List flavors", "Caps that a box can be given."),
            {
                "200": answer(
                    "The flavors.",
                    array("Flavor"),
                    [{"name": "small", "description": "1 CPU", "cpus": 1.0, "mem_mb": 512}],
                ),
                **errors(),
            },
        )
    },
    "/v1/surfaces": {
        "get": operation(
            "listCanvases",
            "Canvases",
            "List canvases",
            "Documents that programs rendered over MCP, of the key's scope.",
            {"200": answer("The canvases.", array("Canvas")), **errors(404)},
            WS,
        )
    },
    "/v1/surfaces/{canvas}": {
        "get": operation(
            "showCanvas",
            "Canvases",
            "Show a canvas",
            "As a page without scripts; with `raw` as it was rendered. Both stand in a sandbox.",
            {
                "200": {
                    "description": "The document.",
                    "content": {
                        kind: {"schema": {"type": "string"}}
                        for kind in (
                            "text/html",
                            "text/markdown",
                            "text/plain",
                            "image/svg+xml",
                        )
                    }
                    | {"application/json": {"schema": {}}},
                },
                **errors(404),
            },
            path("canvas", "Its id.", "report", pattern="^[a-z0-9-]{1,64}$"),
            query("raw", "The content as it is.", type="string"),
            WS,
        )
    },
    "/v1/tls-ask": {
        "get": operation(
            "tlsAsk",
            "Service",
            "Whether a host may have a certificate",
            "For the TLS proxy in front of the service, and for it alone.",
            {
                "200": answer("It is the preview host of a box.", ref("Ok"), {"ok": True}),
                **errors(403, key=False),
            },
            query("domain", "The host that is asked for.", type="string"),
            security=NO_KEY,
        )
    },
    "/v1/openapi.json": {
        "get": operation(
            *("openapi", "Service", "This document", "OpenAPI 3.1."),
            {"200": answer("The document.", {"type": "object"}), **errors(key=False)},
            security=NO_KEY,
        )
    },
    "/docs": {
        "get": operation(
            *("docs", "Service", "The pages for people", "What you read."),
            {
                "200": {
                    "description": "A page without scripts.",
                    "content": {"text/html": {"schema": {"type": "string"}}},
                },
                **errors(key=False),
            },
            security=NO_KEY,
        )
    },
}
