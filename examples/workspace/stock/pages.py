# Pages of a product list.


def page_count(total, size):
    """Number of pages that hold `total` products, `size` on each page. The last page may be partly filled."""
    return total // size


def page_items(items, number, size):
    """Products on page `number`. The first page is number 1."""
    start = (number - 1) * size
    return items[start : start + size]
