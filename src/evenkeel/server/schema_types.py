"""The building blocks of JSON schemas: objects, lists, references."""

from collections.abc import Mapping

Schema = dict[str, object]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
YES_NO: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
MAYBE: Schema = {"type": "integer", "nullable": True}
ANY: Schema = {"type": "object"}


def listed(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def by_name(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def object_of(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        **({"required": list(required)} if required else {}),
    }


def kubernetes_object(kind: str, fields: Mapping[str, Schema]) -> Schema:
    return object_of(
        {
            "apiVersion": {"type": "string", "enum": ["v1"]},
            "kind": {"type": "string", "enum": [kind]},
            **fields,
        }
    )
