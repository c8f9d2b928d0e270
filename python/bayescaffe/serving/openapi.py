"""The description of the interface, as OpenAPI has it."""

from typing import Any

from bayescaffe import __version__


def _object(**properties: dict) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _answer(text: str, schema: dict | None = None, kind: str = "application/json") -> dict:
    return {"description": text, "content": {kind: {"schema": schema or {"type": "string"}}}}


_NUMBER, _TEXT, _YES_NO = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_ERROR = _object(error=_TEXT)
_STATUSES = {
    400: "An option or the form of the body is wrong.",
    401: "The bearer token is missing or wrong.",
    408: "The body did not come in time.",
    413: "The body is too large, or has too many images.",
    415: "The body is of no known type.",
    422: "An image cannot be read.",
    500: "The net could not compute the request. The next one may work.",
    503: "Too many requests wait. Retry-After tells when to come again.",
    504: "The net took too long.",
}


def _image() -> dict[str, Any]:
    rows = {"type": "array", "items": {"type": "array", "items": _NUMBER}}
    image = _object(
        image={**_TEXT, "description": "its name in the request"},
        label={"type": "integer", "description": "the class of the largest mean probability"},
        class_name={"type": ["string", "null"]},
        probability={**_SHARE, "description": "its mean probability over the draws"},
        lower={**_SHARE, "description": "lower end of its credible interval"},
        upper=_SHARE,
        certain={**_YES_NO, "description": "whether this interval overlaps that of no other class"},
        entropy={**_NUMBER, "description": "nats; the sum of aleatoric and epistemic"},
        epistemic={**_NUMBER, "description": "what the draws disagree on"},
        aleatoric={**_NUMBER, "description": "what each draw is unsure of"},
        decision={"type": "string", "enum": ["accept", "repeat", "escalate"]},
        draws={"type": "integer", "description": "how many draws all of this is from"},
        probabilities={"type": "array", "items": _SHARE, "description": "of every class"},
        intervals={**rows, "description": "lower and upper end, of every class"},
        class_set={
            "type": ["array", "null"],
            "items": {"type": "integer"},
            "description": "classes that hold the true one as often as the calibration promises; "
            "null without one, and if the request has other draws or its own accept_above",
        },
        set_names={"type": ["array", "null"], "items": _TEXT},
    )
    image["properties"] |= {
        "draw_probabilities": {**rows, "description": "draws x classes; with include_draws"},
        "changes": {
            **_object(
                level={"type": ["number", "null"]},
                accept_above={"type": ["number", "null"]},
                escalate_below=_NUMBER,
                calibrated={"type": ["object", "null"]},
            ),
            "description": "what would change the decision; with explain",
        },
    }
    return image


def describe(max_passes: int, needs_token: bool) -> dict[str, Any]:
    """The OpenAPI document of a service."""
    options = {
        "draws": {"type": "integer", "minimum": 1, "maximum": max_passes},
        "level": {**_SHARE, "description": "of the credible intervals"},
        "accept_above": {**_SHARE, "description": "what is certain is accepted from this on"},
        "escalate_below": {**_SHARE, "description": "what is not accepted is escalated below this"},
        "invert": {**_YES_NO, "description": "the pictures are dark on light, the net expects the "
                   "opposite"},
        "channels": {"type": "string", "enum": ["rgb", "bgr"], "description": "of arrays"},
        "include_draws": {**_YES_NO, "description": "tell the probabilities of each draw, too"},
        "explain": {**_YES_NO, "description": "tell what would change the decision"},
    }  # fmt: skip
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    array = {"type": "array", "description": "height x width, or with channels before or behind; "
             "0 to 255"}  # fmt: skip
    base64 = {"type": "string", "contentEncoding": "base64"}
    images = {"type": "array", "items": {"anyOf": [base64, array]}}
    errors = {str(code): _answer(text, _ERROR) for code, text in _STATUSES.items()}
    plain = {"401": errors["401"]}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Bayesian Caffe", "version": __version__,
                 "description": "Predictions with credible intervals and a decision. The same "
                 "image gets the same answer."},
        "paths": {
            "/predict": {"post": {
                "summary": "Predict one image or several",
                "parameters": [
                    {"name": name, "in": "query", "schema": schema}
                    for name, schema in options.items()
                ],
                "requestBody": {"required": True, "content": {
                    "image/*": {"schema": file},
                    "application/octet-stream": {"schema": file},
                    "multipart/form-data": {"schema": _object(image=file)},
                    "application/json": {"schema": {
                        "type": "object", "properties": {"images": images, **options},
                        "required": ["images"]}},
                }},
                "responses": {"200": _answer("An entry for each image, in their order.", _object(
                    images={"type": "array", "items": _image()}, level=_SHARE, interval=_TEXT,
                    rule=_object(accept_above=_SHARE, escalate_below=_SHARE))), **errors},
            }},
            "/model": {"get": {"summary": "What is served, and its limits",
                               "responses": {"200": _answer("The net.", {"type": "object"}),
                                             **plain}}},
            "/metrics": {"get": {"summary": "Counters for Prometheus",
                                 "responses": {"200": _answer("Its text format.",
                                                              kind="text/plain"), **plain}}},
            "/healthz": {"get": {"summary": "Whether requests can be answered",
                                 "responses": {"200": _answer("Yes.", _object(status=_TEXT)),
                                               "503": _answer("Not now.",
                                                              _object(status=_TEXT))}}},
        },
    }  # fmt: skip
    if needs_token:
        document["components"] = {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}
        }
        document["security"] = [{"token": []}]
    return document
