"""The recipes of one model among the small files beside the sessions: earlier ones by digest, and the current one."""

from __future__ import annotations

import logging

from pinfold.errors import SessionCorruptError
from pinfold.kv.recipe import Recipe
from pinfold.kv.recipe_file import dump_recipe, load_recipe
from pinfold.store.recipes import RecipeFiles

__all__ = ["ModelRecipes"]

log = logging.getLogger("pinfold.sessions")


class ModelRecipes:
    """Recipes in `files` for the engine and model of `fingerprint`. Safe from any thread."""

    def __init__(self, files: RecipeFiles, fingerprint: str) -> None:
        self._files = files
        self._current = "current " + fingerprint

    def get(self, digest: str) -> Recipe | None:
        """The recipe of that digest, None if it is not here or is another."""
        data = self._files.read(digest)
        try:
            recipe = load_recipe(data) if data is not None else None
        except SessionCorruptError as e:
            log.warning("a recipe could not be read: %s", e)
            return None
        return recipe if recipe is not None and recipe.digest() == digest else None

    def current(self) -> Recipe | None:
        """The last one that was kept, if any."""
        digest = self._files.read(self._current)
        return self.get(digest.decode("ascii", "replace")) if digest is not None else None

    def keep(self, recipe: Recipe) -> None:
        """Makes `recipe` the current one; sessions that were folded by another still find that. Raises StoreError."""
        digest = recipe.digest()
        self._files.write(digest, dump_recipe(recipe))
        self._files.write(self._current, digest.encode())
