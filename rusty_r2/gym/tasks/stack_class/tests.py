import unittest

from template import Stack


class TestStack(unittest.TestCase):
    def test_last_in_first_out(self):
        stack = Stack()
        stack.push("bolt")
        stack.push("nut")
        self.assertEqual(stack.pop(), "nut")
        self.assertEqual(stack.pop(), "bolt")

    def test_peek_keeps_the_item(self):
        stack = Stack()
        stack.push(5)
        self.assertEqual(stack.peek(), 5)
        self.assertEqual(len(stack), 1)

    def test_length(self):
        stack = Stack()
        self.assertEqual(len(stack), 0)
        for item in range(3):
            stack.push(item)
        stack.pop()
        self.assertEqual(len(stack), 2)

    def test_empty(self):
        with self.assertRaises(IndexError):
            Stack().pop()
        with self.assertRaises(IndexError):
            Stack().peek()
