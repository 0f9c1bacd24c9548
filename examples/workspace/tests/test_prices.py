import unittest

from stock.prices import as_text, with_discount


class PricesTest(unittest.TestCase):
    def test_discount_is_rounded(self):
        self.assertEqual(with_discount(999, 10), 899)

    def test_text_has_two_decimals(self):
        self.assertEqual(as_text(1205), "12.05")
