import pkg.value
print(pkg.value.VALUE)
