import unittest

from template import sum_list


class TestSumList(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(sum_list([]), 0)

    def test_one(self):
        self.assertEqual(sum_list([7]), 7)

    def test_several(self):
        self.assertEqual(sum_list([1, 2, 3, 4]), 10)

    def test_negative(self):
        self.assertEqual(sum_list([-5, 5, -2]), -2)

    def test_argument_is_left_alone(self):
        nums = [3, 1]
        sum_list(nums)
        self.assertEqual(nums, [3, 1])


if __name__ == "__main__":
    unittest.main()
