import unittest

from template import word_counts


class TestWordCounts(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(word_counts("a b a"), {"a": 2, "b": 1})

    def test_capitals(self):
        self.assertEqual(word_counts("Tin tin TIN can"), {"tin": 3, "can": 1})

    def test_spaces(self):
        self.assertEqual(word_counts("  one   two\nthree\t"), {"one": 1, "two": 1, "three": 1})

    def test_empty(self):
        self.assertEqual(word_counts(""), {})
