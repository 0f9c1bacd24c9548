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
    def test_pages_begin_with_number_1(self):
        products = ["tea", "rice", "salt", "oil"]
        self.assertEqual(page_items(products, 1, 3), ["tea", "rice", "salt"])
        self.assertEqual(page_items(products, 2, 3), ["oil"])
