"""What a program does with the results of its calls: lists that it joins, handles it waits for."""
