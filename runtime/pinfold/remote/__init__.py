"""A model behind another process's server: pins, usage and reports over the wire.

Enters: what a `Runtime` is asked for. Leaves: requests to an OpenAI-compatible server, and deltas. One thread with an
event loop of its own holds all connections; callers' threads and tasks only read what it hands over. Nothing here may
import an engine, the worker or the store's files other than `store.remote_pins`, and nothing else may import httpx.

``address`` and ``transport`` reach a server, ``probe``, ``kinds`` and ``facts`` say what it is, ``requests`` and
``replies`` speak its language, ``own`` renders prompts here where it can, ``pins`` and ``holding`` keep prefixes warm,
``replicas`` chooses among several, and ``backend`` puts them together.
"""
