//! Write amplification of uniform random writes in closed form.
//!
//! With large blocks, greedy cleaning takes the block that was written longest ago. With `a` the physical space divided by
//! the live data, a block then still has the share `-W(-a exp(-a)) / a` of its data, where `W` is the principal branch of
//! Lambert's function, and each write of the host costs `a / (a + W(-a exp(-a)))` writes of the flash (Xiang and Kurkoski,
//! "An improved analytical expression for write amplification in NAND flash", 2012; Desnoyers, "Analytic modeling of SSD
//! write performance", 2012).

/// Steps of Newton's method; six are enough.
const STEPS_MAX: usize = 100;

/// Lambert's function, its principal branch, from -1/e to 0: the `w` from -1 to 0 with `w exp(w) = x`.
fn lambert(x: f64) -> f64 {
    // The series at the branch point, which is the hard end.
    let p = (2.0 * (std::f64::consts::E * x + 1.0)).max(0.0).sqrt();
    let mut w = if x < -0.2 {
        -1.0 + p - p * p / 3.0 + 11.0 / 72.0 * p.powi(3)
    } else {
        x * (1.0 - x)
    };
    for _ in 0..STEPS_MAX {
        let power = w.exp();
        let slope = power * (w + 1.0);
        if slope.abs() < 1e-12 {
            break;
        }
        let step = (w * power - x) / slope;
        w = (w - step).clamp(-1.0, 0.0);
        if step.abs() < 1e-15 {
            break;
        }
    }
    w
}

/// Writes of the flash for each write of the host, without overhead: from the physical space divided by the live data.
/// Infinite if there is no more space than data.
#[must_use]
pub fn amplification(space_ratio: f64) -> f64 {
    if space_ratio <= 1.0 {
        return f64::INFINITY;
    }
    space_ratio / (space_ratio + lambert(-space_ratio * (-space_ratio).exp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lambert_inverts_w_exp_w() {
        for w in [-0.999, -0.9, -0.5, -0.3, -0.1, -1e-3, -1e-9] {
            let x: f64 = w * f64::exp(w);
            assert!((lambert(x) - w).abs() < 1e-6, "{w}: {}", lambert(x));
        }
        assert_eq!(lambert(0.0), 0.0);
    }

    #[test]
    fn known_values() {
        // 64 GiB of flash, 60 GB of data stored in whole, three quarters, half and a quarter of its size.
        let ratio = 64.0 * 1024.0_f64.powi(3) / 60e9;
        for (stored, expected) in [(1.0, 4.12), (0.75, 1.67), (0.5, 1.16), (0.25, 1.01)] {
            let found = amplification(ratio / stored);
            assert!((found - expected).abs() < 0.006, "{stored}: {found}");
        }
        assert!((amplification(1.3) - 2.36).abs() < 0.005);
        assert_eq!(amplification(1.0), f64::INFINITY);
        assert!(amplification(1.001) > 400.0);
        assert!((amplification(50.0) - 1.0).abs() < 1e-9);
    }
}
