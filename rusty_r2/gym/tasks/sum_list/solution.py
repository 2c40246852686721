def sum_list(nums):
    return sum(nums)
