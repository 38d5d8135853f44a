"""Real PyTorch training under autocast and a gradient scaler, watched step by step. torch is loaded when it is used."""
