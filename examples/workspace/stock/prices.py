# Prices, always in whole cents.


def with_discount(cents, percent):
    """The price after a discount of `percent`, rounded to the nearest cent."""
    return round(cents * (100 - percent) / 100)


def as_text(cents):
    """The price as people write it, such as 12.50."""
    return f"{cents // 100}.{cents % 100:02d}"
