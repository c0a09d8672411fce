"""A plain old Flower project: softmax regression on scikit-learn's handwritten digits."""
