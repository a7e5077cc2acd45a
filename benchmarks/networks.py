"""Networks as plain torch modules with random weights, and their export to ONNX.

They have the architectures of their papers and the shapes of the usual implementations, so that what is
measured on them is what users have. Weights are random and seeded. Batch norms have random statistics, so
that folding them matters.

    python benchmarks/networks.py resnet18 resnet18.onnx
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[Tensor, ...]
Network = tuple[nn.Module, Example, list[str]]


# --- convolutional ----------------------------------------------------------------------------


def conv_bn(
    ci: int, co: int, k: int, stride: int = 1, groups: int = 1, act: nn.Module | None = None
) -> nn.Sequential:
    """Convolution, batch norm, activation."""
    layers = [nn.Conv2d(ci, co, k, stride, (k - 1) // 2, groups=groups, bias=False), nn.BatchNorm2d(co)]
    return nn.Sequential(*layers, *([act] if act is not None else []))


class Residual(nn.Module):
    """A block of ResNet (He et al., Deep residual learning, 2015): two 3×3 convolutions, or 1×1, 3×3, 1×1."""

    def __init__(self, ci: int, width: int, stride: int, bottleneck: bool):
        super().__init__()
        co = width * 4 if bottleneck else width
        first = [conv_bn(ci, width, 1, act=nn.ReLU()), conv_bn(width, width, 3, stride, act=nn.ReLU())]
        plain = [conv_bn(ci, width, 3, stride, act=nn.ReLU()), conv_bn(width, width, 3)]
        self.body = nn.Sequential(*first, conv_bn(width, co, 1)) if bottleneck else nn.Sequential(*plain)
        self.skip = conv_bn(ci, co, 1, stride) if stride > 1 or ci != co else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, blocks: Sequence[int], bottleneck: bool, width: int = 64, classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, width, 7, 2, act=nn.ReLU()), nn.MaxPool2d(3, 2, 1))
        layers: list[nn.Module] = []
        ci = width
        for stage, n in enumerate(blocks):
            for i in range(n):
                w = width * 2**stage
                layers.append(Residual(ci, w, 2 if stage and not i else 1, bottleneck))
                ci = w * 4 if bottleneck else w
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(ci, classes)

    def forward(self, x: Tensor) -> Tensor:
        y = F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1)
        return self.head(torch.flatten(y, 1))


class Inverted(nn.Module):
    """A block of MobileNetV2 (Sandler et al., 2018): expand, depthwise, project."""

    def __init__(self, ci: int, co: int, stride: int, expand: int):
        super().__init__()
        hidden = ci * expand
        wide = [conv_bn(ci, hidden, 1, act=nn.ReLU6())] if expand > 1 else []
        depthwise = conv_bn(hidden, hidden, 3, stride, groups=hidden, act=nn.ReLU6())
        self.body = nn.Sequential(*wide, depthwise, conv_bn(hidden, co, 1))
        self.residual = stride == 1 and ci == co

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV2(nn.Module):
    # (expansion, channels, blocks, stride of the first).
    PLAN = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, plan: Sequence[tuple[int, int, int, int]] = PLAN, stem: int = 32, last: int = 1280):
        super().__init__()
        layers: list[nn.Module] = [conv_bn(3, stem, 3, 2, act=nn.ReLU6())]
        ci = stem
        for expand, co, n, stride in plan:
            for i in range(n):
                layers.append(Inverted(ci, co, 1 if i else stride, expand))
                ci = co
        self.features = nn.Sequential(*layers, conv_bn(ci, last, 1, act=nn.ReLU6()))
        self.head = nn.Linear(last, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Fire(nn.Module):
    """A block of SqueezeNet (Iandola et al., 2016): squeeze, then 1×1 and 3×3 side by side."""

    def __init__(self, ci: int, squeeze: int, expand: int):
        super().__init__()
        self.squeeze = nn.Conv2d(ci, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        s = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(s)), F.relu(self.three(s))], 1)


class Vgg(nn.Module):
    """VGG-11 with batch norms (Simonyan and Zisserman, 2014): eight 3×3 convolutions, three products."""

    def __init__(
        self,
        plan: Sequence[Sequence[int]] = ((64,), (128,), (256, 256), (512, 512), (512, 512)),
        hidden: int = 4096,
        size: int = 224,
        classes: int = 1000,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        ci = 3
        for widths in plan:
            for co in widths:
                layers.append(conv_bn(ci, co, 3, act=nn.ReLU()))
                ci = co
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        pixels = (size >> len(plan)) ** 2
        widths = (ci * pixels, hidden, hidden)
        heads = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        self.head = nn.Sequential(*heads, nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


class SqueezeNet(nn.Module):
    """Version 1.1."""

    def __init__(self, width: int = 16, classes: int = 1000):
        super().__init__()
        w = width
        plan = [
            (4 * w, w, 4 * w),
            (8 * w, w, 4 * w),
            None,
            (8 * w, 2 * w, 8 * w),
            (16 * w, 2 * w, 8 * w),
            None,
            (16 * w, 3 * w, 12 * w),
            (24 * w, 3 * w, 12 * w),
            (24 * w, 4 * w, 16 * w),
            (32 * w, 4 * w, 16 * w),
        ]
        layers: list[nn.Module] = [nn.Conv2d(3, 4 * w, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
        layers += [nn.MaxPool2d(3, 2, ceil_mode=True) if p is None else Fire(*p) for p in plan]
        self.body = nn.Sequential(*layers, nn.Conv2d(32 * w, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.body(x), 1)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, layer norm over channels, two products (Liu et al., A ConvNet for the 2020s, 2022)."""

    def __init__(self, c: int):
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c, 1e-6)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (n, c, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, blocks: Sequence[int] = (3, 3, 9, 3), width: int = 96, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width, 1e-6)]
        for stage, n in enumerate(blocks):
            c = width * 2**stage
            if stage:
                layers += [ChannelNorm(c // 2, 1e-6), nn.Conv2d(c // 2, c, 2, 2)]
            layers += [ConvNeXtBlock(c) for _ in range(n)]
        self.body = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(c, 1e-6), nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x).mean((2, 3))))


# --- transformers -----------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention of several heads, its products and softmax written out. ``mask``: added to the scores."""

    def __init__(self, hidden: int, heads: int, merged: bool):
        super().__init__()
        self.heads, self.merged = heads, merged
        sizes = [3 * hidden] if merged else [hidden] * 3
        self.qkv = nn.ModuleList(nn.Linear(hidden, n) for n in sizes)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, s, h = x.shape
        parts = self.qkv[0](x).split(h, 2) if self.merged else [f(x) for f in self.qkv]
        q, k, v = (p.view(b, s, self.heads, h // self.heads).transpose(1, 2) for p in parts)
        scores = q @ k.transpose(-1, -2) / (h // self.heads) ** 0.5
        if mask is not None:
            scores = scores + mask
        y = torch.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, s, h))


class PostNormLayer(nn.Module):
    """A layer of BERT: the norms follow the residual additions."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.attention = Attention(hidden, heads, merged=False)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, 1e-12), nn.LayerNorm(hidden, 1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(self.attention(x, mask) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class Bert(nn.Module):
    """The encoder of BERT (Devlin et al., 2018), before its pooler. Inputs: ids and a mask of 0 and 1."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int = 512):
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.kind, self.norm = nn.Embedding(2, hidden), nn.LayerNorm(hidden, 1e-12)
        self.layers = nn.ModuleList(PostNormLayer(hidden, heads) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.word(ids) + self.kind(torch.zeros_like(ids)) + self.position(places)
        x = self.norm(x)
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, added)
        return x


class PreNormLayer(nn.Module):
    """A layer of GPT-2 and of ViT: the norms come first."""

    def __init__(self, hidden: int, heads: int, tanh: bool):
        super().__init__()
        self.attention = Attention(hidden, heads, merged=True)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.form = "tanh" if tanh else "none"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.form))


class Gpt2(nn.Module):
    """GPT-2 (Radford et al., 2019) with its head for language modelling."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int = 1024):
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.layers = nn.ModuleList(PreNormLayer(hidden, heads, tanh=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        x = self.word(ids) + self.position(torch.arange(n, device=ids.device)[None])
        ahead = torch.ones(n, n, dtype=torch.bool, device=ids.device).triu(1)
        mask = torch.zeros(n, n, device=ids.device).masked_fill(ahead, torch.finfo(x.dtype).min)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2020) with a class token."""

    def __init__(self, layers: int = 12, hidden: int = 384, heads: int = 6, size: int = 224, patch: int = 16):
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, hidden) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, hidden) * 0.02)
        self.layers = nn.ModuleList(PreNormLayer(hidden, heads, tanh=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden, 1e-6), nn.Linear(hidden, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.places
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y[:, 0]))


# --- by name ----------------------------------------------------------------------------------


def _image(size: int) -> Example:
    return (torch.randn(1, 3, size, size),)


def _bert(
    layers: int = 4, hidden: int = 768, heads: int = 12, vocabulary: int = 2000, sequence: int = 128
) -> Network:
    mask = torch.ones(1, sequence, dtype=torch.int64)
    mask[:, sequence - sequence // 4 :] = 0
    ids = torch.randint(0, vocabulary, (1, sequence))
    return Bert(layers, hidden, heads, vocabulary), (ids, mask), ["ids", "mask"]


def _gpt2(
    layers: int = 4, hidden: int = 768, heads: int = 12, vocabulary: int = 5000, sequence: int = 64
) -> Network:
    return Gpt2(layers, hidden, heads, vocabulary), (torch.randint(0, vocabulary, (1, sequence)),), ["ids"]


def _images(make: Callable[..., nn.Module], **fixed: Any) -> Callable[..., Network]:
    def build(size: int = 224, **changes: Any) -> Network:
        return make(**{**fixed, **changes}), _image(size), ["x"]

    return build


def _vit(size: int = 224, **changes: Any) -> Network:
    return ViT(size=size, **changes), _image(size), ["x"]


def _vgg(size: int = 224, **changes: Any) -> Network:
    return Vgg(size=size, **changes), _image(size), ["x"]


# {name: function of sizes, which have the defaults of the full network}.
NETWORKS: dict[str, Callable[..., Network]] = {
    "resnet18": _images(ResNet, blocks=(2, 2, 2, 2), bottleneck=False),
    "resnet50": _images(ResNet, blocks=(3, 4, 6, 3), bottleneck=True),
    "mobilenet_v2": _images(MobileNetV2),
    "bert": _bert,
    "gpt2": _gpt2,
    "squeezenet": _images(SqueezeNet),
    "convnext": _images(ConvNeXt),
    "vit": _vit,
    "vgg11": _vgg,
}
# Sizes with which tests run in a moment.
SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"size": 32, "width": 8, "blocks": (1, 1, 1), "classes": 10},
    "resnet50": {"size": 32, "width": 8, "blocks": (1, 1), "classes": 10},
    "mobilenet_v2": {"size": 32, "plan": ((1, 8, 1, 1), (6, 8, 2, 2)), "stem": 8, "last": 16},
    "bert": {"layers": 1, "hidden": 32, "heads": 4, "vocabulary": 50, "sequence": 12},
    "gpt2": {"layers": 1, "hidden": 32, "heads": 4, "vocabulary": 50, "sequence": 12},
    "squeezenet": {"size": 39, "width": 2, "classes": 10},
    "convnext": {"size": 32, "width": 8, "blocks": (1, 1), "classes": 10},
    "vit": {"size": 16, "layers": 1, "hidden": 32, "heads": 4, "patch": 8},
    "vgg11": {"size": 32, "plan": ((8,), (8, 8)), "hidden": 16, "classes": 10},
}


def network(name: str, **sizes: Any) -> Network:
    """(a network in evaluation mode, example inputs, names of the inputs), with seeded random weights.
    ``sizes``: other parameters than the full network's. Raises KeyError for an unknown name."""
    torch.manual_seed(0)
    module, example, names = NETWORKS[name](**sizes)
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            assert m.running_mean is not None and m.running_var is not None
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.5, 1.5)
            m.weight.data.uniform_(0.5, 1.5)
            m.bias.data.normal_(0, 0.1)
    return module.eval(), example, names


def export(name: str, path: Any, dynamo: bool = False, **sizes: Any) -> Example:
    """Write a network as an ONNX file; returns its example inputs. ``dynamo``: by torch.export, which needs
    onnxscript, else by tracing, at opset 17."""
    module, example, names = network(name, **sizes)
    how: dict[str, Any] = {"external_data": False} if dynamo else {"opset_version": 17}
    with torch.no_grad():
        torch.onnx.export(
            module, example, path, input_names=names, output_names=["y"], dynamo=dynamo, verbose=False, **how
        )
    return example


if __name__ == "__main__":
    export(*sys.argv[1:3])
