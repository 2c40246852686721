import unittest

from shop import total


class TestTotal(unittest.TestCase):
    def test_one_kind(self):
        self.assertEqual(total([["bolt", 3]]), 6)

    def test_two_kinds(self):
        self.assertEqual(total([["nut", 4], ["gear", 2]]), 34)

    def test_nothing(self):
        self.assertEqual(total([]), 0)

    def test_unknown(self):
        with self.assertRaises(KeyError):
            total([["cog", 1]])
