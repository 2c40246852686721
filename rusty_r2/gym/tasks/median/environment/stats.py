def median(numbers):
    middle = len(numbers) // 2
    return numbers[middle]
