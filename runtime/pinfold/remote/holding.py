"""What each kind of server offers to keep a pin: slots and their files, or a controller that pins by tokens.

Every step may be refused by the server; the pin then is warm for as long as the server keeps it by its own policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinfold.errors import ServerError
from pinfold.remote.faults import excerpt
from pinfold.remote.pins import RemotePin
from pinfold.remote.replicas import Server
from pinfold.remote.transport import Transport

__all__ = ["choose_slot", "restore_slot", "save_slot", "tell_lmcache"]

_FILE_TIMEOUT = 120.0


def choose_slot(server: Server, pins: Iterable[RemotePin]) -> int | None:
    """The slot for a new pin: the last that holds none. None leaves the choice to the server, which is so where that
    would leave no slot for anything else."""
    if not server.facts.has("slots") or server.facts.slots is None:
        return None
    held = {pin.slot for pin in pins if pin.server == server.address.api}
    free = [slot for slot in range(server.facts.slots) if slot not in held]
    return free[-1] if len(free) > 1 else None


async def save_slot(transport: Transport, server: Server, pin: RemotePin) -> None:
    """Saves the slot of `pin` to a file on the server, so that a restart of it loses nothing."""
    if pin.slot is None or server.facts.known("slot files") == "no":
        return
    file = f"pinfold-{pin.digest[:32]}.bin"
    done, words = await _slot(transport, server, pin.slot, "save", file)
    if done:
        pin.file = file
        server.facts = server.facts.with_feature("slot files", "yes", "it saved one")
    else:
        server.facts = server.facts.with_feature("slot files", "no", words)


async def restore_slot(transport: Transport, server: Server, pin: RemotePin) -> bool:
    """Brings `pin` back from its file into its slot; whether that worked."""
    pin.restore = False
    if pin.slot is None or pin.file is None:
        return False
    done, _ = await _slot(transport, server, pin.slot, "restore", pin.file)
    return done


async def tell_lmcache(transport: Transport, controller: str, tokens: tuple[int, ...], warn: list[str]) -> None:
    """Asks an LMCache controller where `tokens` lie, and to keep them there; adds to `warn` why it could not."""
    url = controller.rstrip("/")
    try:
        found = (await transport.ask("POST", f"{url}/lookup", {"tokens": list(tokens)})).json()
        places = found.get("layout_info") if isinstance(found, Mapping) else None
        if not isinstance(places, Mapping) or not places:
            warn.append(f"LMCache at {url} does not know these tokens yet.")
            return
        for instance, place in places.items():
            location = place[0] if isinstance(place, list | tuple) and place else place
            body = {"tokens": list(tokens), "instance_id": instance, "location": location}
            got = await transport.ask("POST", f"{url}/pin", body)
            if got.status != 200:
                warn.append(f"LMCache at {url} did not pin on {instance}: {excerpt(got.text)}")
    except ServerError as e:
        warn.append(f"LMCache: {e}")


async def _slot(transport: Transport, server: Server, slot: int, action: str, file: str) -> tuple[bool, str]:
    url = f"{server.address.root}/slots/{slot}?action={action}"
    try:
        got = await transport.ask("POST", url, {"filename": file}, within=_FILE_TIMEOUT)
    except ServerError as e:
        return False, str(e)
    found: Any = got.json()
    if isinstance(found, Mapping) and (found.get("n_saved") or found.get("n_restored")):
        return True, ""
    return False, excerpt(got.text)
