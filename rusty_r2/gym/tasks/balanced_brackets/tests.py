import unittest

from template import balanced


class TestBalanced(unittest.TestCase):
    def test_closed(self):
        for text in ("", "()", "([]{})", "f(x[0], {1: 2})", "no brackets"):
            self.assertIs(balanced(text), True)

    def test_left_open(self):
        for text in ("(", "[(", "{()", "a[b"):
            self.assertIs(balanced(text), False)

    def test_closed_too_early(self):
        for text in (")", "())", "]["):
            self.assertIs(balanced(text), False)

    def test_crossed(self):
        for text in ("([)]", "{(})", "(]"):
            self.assertIs(balanced(text), False)
