import unittest

from stock.labels import WIDTH, shelf_label


class ShelfLabelTest(unittest.TestCase):
    def test_short_name(self):
        self.assertEqual(shelf_label("Tea", 450), "Tea                 4.50")

    def test_long_name_is_cut(self):
        label = shelf_label("A very long name of a product", 450)
        self.assertEqual(len(label), WIDTH)
        self.assertTrue(label.endswith(" 4.50"))
