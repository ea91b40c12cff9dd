"""The report: facts and checks, as data and as text."""

from __future__ import annotations

from typing import Any

from . import checks, machine


def report(devices: list[str] | None = None, timeout: float = 300.0) -> dict[str, Any]:
    """Everything. devices: torch devices to check, all of them by default."""
    found = machine.facts()
    found["checks"] = {}
    torch = found.get("torch")
    if torch is None or "error" in torch:
        if "numpy" in found["versions"]:
            found["checks"]["NumPy arrays"] = {"flashwave": checks.run("arrays", "cpu", timeout)}
    else:
        for device in devices or torch["devices"]:
            found["checks"][device] = {
                "flashwave": checks.run("flashwave", device, timeout),
                "torch's scaled_dot_product_attention": checks.run("sdpa", device, timeout),
            }
    found["missing"] = machine.missing(found)
    return found


def failures(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The checks of flashwave, not of torch, that did not give right numbers."""
    return [line for device in found["checks"].values() for line in device.get("flashwave", []) if not line["right"]]


def text(found: dict[str, Any]) -> str:
    lines = [f"flashwave {found['flashwave']['version']}"]
    for title, keys in (("flashwave", ("package", "library", "torch binding")), ("system", tuple(found["system"]))):
        lines += [f"  {key:14} {found[title][key] or 'none'}" for key in keys]
    lines += [f"  {note}" for note in found["flashwave"]["kernels"]]
    lines.append("versions")
    lines += [f"  {name:14} {version}" for name, version in found["versions"].items()]
    torch = found.get("torch")
    if torch:
        lines += [f"  torch, {key}: {value}" for key, value in torch.items() if key != "devices"]
    lines.append("drivers and runtimes")
    lines += [
        f"  {name:14} {path or 'not found: ' + machine.RUNTIMES[name]}" for name, path in found["runtimes"].items()
    ]
    lines.append("devices of the library")
    for device in found["devices"]:
        size = f"{device['compute_units']} units, {device['memory_bytes'] >> 20} MiB"
        lines.append(f"  {device['name']:8} {device['arch']:18} {device['description']} ({size})")
    if found["variables"]:
        lines.append("environment")
        lines += [f"  {name}={value}" for name, value in found["variables"].items()]
    for device, parts in found["checks"].items():
        for what, results in parts.items():
            lines.append(f"check of {what} on {device}: forward and backward against float64")
            for result in results:
                lines += _result_lines(result)
    lines.append("missing")
    lines += [f"  {line}" for line in found["missing"]] or ["  nothing"]
    wrong = failures(found)
    lines.append(
        "" if not wrong else f"{len(wrong)} checks of flashwave FAILED: please report this, with the whole text"
    )
    return "\n".join(lines).rstrip()


def _result_lines(result: dict[str, Any]) -> list[str]:
    head = f"  {result['dtype']:9} {result['shape']:8}"
    if "error" in result:
        return [f"{head} FAILED   {result['error']}"]
    errors = ", ".join(f"{name} {result[name]:.1e}" for name in ("forward error", "backward error") if name in result)
    lines = [f"{head} {'right' if result['right'] else 'WRONG':8} {errors}"]
    lines += [f"      {op}: {result[op]}" for op in ("fwd", "bwd") if op in result]
    return lines
