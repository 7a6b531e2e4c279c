"""A Vision Transformer in plain JAX, from the equations of https://arxiv.org/abs/2010.11929: what trainer.models.vit has
to equal. It shares no code with it, only the names and shapes of arrays."""

import jax
import jax.numpy as jnp


def logits(params, images, *, exact=True, epsilon=1e-6):
    """float32 [b, classes] for normalized images [b, h, w, channels], with the arrays of a file.

    Without a "token" the mean of all patches is classified; without "positions" they have sines and cosines."""
    size = params["patches/kernel"].shape[0]
    rows, columns = (side // size for side in images.shape[1:3])
    patches = images.reshape(len(images), rows, size, columns, size, -1).swapaxes(2, 3)
    kernel = params["patches/kernel"]
    x = patches.reshape(len(images), rows * columns, -1) @ kernel.reshape(-1, kernel.shape[-1])
    x = x + params["patches/bias"]
    if "token" in params:
        x = jnp.concatenate([jnp.tile(params["token"], (len(x), 1, 1)), x], 1)
    x = x + params.get("positions", waves(rows, columns, x.shape[-1]))

    def part(name, layer):
        return params[f"layers/{name}"][layer]

    for layer in range(len(params["layers/up/bias"])):
        y = standardized(
            x, *(part(f"norms/attention/{name}", layer) for name in ("scale", "bias")), epsilon
        )
        query, key, value = (
            jnp.einsum("btw,whf->bhtf", y, part(f"attention/{name}/kernel", layer))
            + part(f"attention/{name}/bias", layer)[:, None]
            for name in ("query", "key", "value")
        )
        shares = jax.nn.softmax(query @ key.swapaxes(-1, -2) / key.shape[-1] ** 0.5)
        heads = jnp.einsum("bhtf,hfw->btw", shares @ value, part("attention/out/kernel", layer))
        x = x + heads + part("attention/out/bias", layer)
        y = standardized(
            x, *(part(f"norms/dense/{name}", layer) for name in ("scale", "bias")), epsilon
        )
        y = y @ part("up/kernel", layer) + part("up/bias", layer)
        x = x + gelu(y, exact) @ part("down/kernel", layer) + part("down/bias", layer)
    x = standardized(x, params["norm/scale"], params["norm/bias"], epsilon)
    x = x[:, 0] if "token" in params else x.mean(1)
    return x @ params["head/kernel"] + params["head/bias"]


def standardized(x, scale, bias, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale + bias


def gelu(x, exact):
    if exact:
        return x * (1 + jax.lax.erf(x / 2**0.5)) / 2
    return x * (1 + jnp.tanh((2 / jnp.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2


def waves(rows, columns, width):
    """posemb_sincos_2d of big_vision: sines and cosines of x, then of y."""
    omega = 10_000.0 ** -(jnp.arange(width // 4) / (width // 4 - 1))
    y, x = (place.reshape(-1, 1) * omega for place in jnp.mgrid[:rows, :columns])
    return jnp.concatenate([jnp.sin(x), jnp.cos(x), jnp.sin(y), jnp.cos(y)], 1)


def cross_entropy(logits, labels):
    """Of each row."""
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]


def adamw(params, grads, moments, step, rate, decay):
    """The parameters and the moments after step 1, 2, ... Kernels decay."""
    mean, square = moments
    mean = jax.tree.map(lambda old, grad: 0.9 * old + 0.1 * grad, mean, grads)
    square = jax.tree.map(lambda old, grad: 0.999 * old + 0.001 * grad**2, square, grads)

    def after(name, param):
        update = mean[name] / (1 - 0.9**step)
        update /= jnp.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
        return param - rate * (update + decay * name.endswith("kernel") * param)

    return {name: after(name, param) for name, param in params.items()}, (mean, square)
