# Labels on the shelf.

from stock.prices import as_text

WIDTH = 24


def shelf_label(name, cents):
    """One line of WIDTH characters: the name on the left, cut where it is too long, and the price on the right."""
    price = as_text(cents)
    room = WIDTH - len(price) - 1
    return f"{name[:room]:<{room}} {price}"
