def sum_list(nums):
    total = 0
    for i in range(1, len(nums)):
        total += nums[i]
    return total
