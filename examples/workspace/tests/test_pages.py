import unittest

from stock.pages import page_count, page_items


class PageCountTest(unittest.TestCase):
    def test_no_products_need_no_page(self):
        self.assertEqual(page_count(0, 3), 0)

    def test_full_pages(self):
        self.assertEqual(page_count(9, 3), 3)

    def test_last_page_partly_filled(self):
        self.assertEqual(page_count(10, 3), 4)


class PageItemsTest(unittest.TestCase):
    def test_first_page(self):
        self.assertEqual(page_items(["a", "b", "c", "d"], 1, 3), ["a", "b", "c"])

    def test_last_page(self):
        self.assertEqual(page_items(["a", "b", "c", "d"], 2, 3), ["d"])
