"""As much of JSON Schema as docs/verify.schema.json uses; a keyword that is not known is an error, so that none is passed over."""
KNOWN = {"$schema", "title", "$defs", "$ref", "type", "required", "properties", "additionalProperties", "items", "enum"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float)}


def is_type(value, name):
    if isinstance(value, bool) and name in ("integer", "number"):
        return False
    return isinstance(value, TYPES[name])


def faults(value, schema, root=None, where="$"):
    """Sentences about what is wrong, none when the value is as the schema says."""
    root = root or schema
    unknown = set(schema) - KNOWN
    assert not unknown, f"the schema uses {unknown}"
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return faults(value, target, root, where)
    found = []
    if "enum" in schema and not any(value == e and type(value) is type(e) for e in schema["enum"]):
        found.append(f"{where}: {value!r} is none of {schema['enum']}")
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(is_type(value, n) for n in names):
        return found + [f"{where}: {type(value).__name__} is not {' or '.join(names)}"]
    if isinstance(value, dict):
        found += [f"{where}: {key} is missing" for key in schema.get("required", []) if key not in value]
        for key, part in value.items():
            if key in schema.get("properties", {}):
                found += faults(part, schema["properties"][key], root, f"{where}.{key}")
            elif schema.get("additionalProperties", True) is False:
                found.append(f"{where}: {key} is not known")
    if isinstance(value, list) and "items" in schema:
        for i, part in enumerate(value):
            found += faults(part, schema["items"], root, f"{where}[{i}]")
    return found
