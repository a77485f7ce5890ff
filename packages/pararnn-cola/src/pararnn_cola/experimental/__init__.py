"""What may change or go without notice: pilots without a theory behind them."""

from pararnn_cola.experimental.lstm import LSTMLayer

__all__ = ["LSTMLayer"]
