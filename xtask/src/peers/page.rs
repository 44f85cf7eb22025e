//! The page: one chart for each kind of data, and the tables.

use std::fmt::Write;

use flaz_page::drawing::{Drawing, Scale, round_step, ticks};
use flaz_page::text::{escape, prose};

use super::cells::{SAVED_PERCENTS, SSD_MIB, SYSTEMS, WORKING_MIB};
use super::figures::Measured;
use super::tables;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 46.0;
const LEFT: f64 = 62.0;
/// Space for the values at the ends of the lines.
const RIGHT: f64 = WIDTH - 60.0;

const STYLE: &str = include_str!("page.css");

/// The page of all measurements.
pub(super) fn html(measured: &[Measured]) -> String {
    let mut main = format!(
        "<header>\n<p class=\"kicker\">flaz peers</p>\n<h1>flaz beside the caches of the kernel</h1>\n<p class=\"lead\">{}</p>\n</header>\n",
        prose(&format!(
            "Direct 4 KiB requests at depth 16, zipf 0.9, to an SSD of {SSD_MIB} MiB in front of working sets of 4 to 32 times \
             its size, on a virtual machine with Linux's own dm-cache and bcache. Counted at the disks: reads of the \
             origin for each request of the client. Lower is better."
        ))
    );
    main +=
        "<section id=\"charts\">\n<h2>Reads of the origin for each zipf read</h2>\n<ul class=\"legend\">\n";
    for (number, system) in SYSTEMS.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(
            main,
            "<li class=\"c{number}\"><svg viewBox=\"0 0 40 10\" aria-hidden=\"true\"><line class=\"line c{number}\" x1=\"2\" y1=\"5\" \
             x2=\"38\" y2=\"5\"/></svg><span class=\"name\">{}</span></li>",
            escape(tables::title(system))
        );
    }
    main += "</ul>\n<div class=\"charts\">\n";
    for saved_percent in SAVED_PERCENTS {
        if let Some(chart) = chart(measured, saved_percent) {
            let _ = writeln!(
                main,
                "<figure><div class=\"plot\">{chart}</div><figcaption>Data of which {saved_percent} % is saved.</figcaption></figure>"
            );
        }
    }
    main += "</div>\n</section>\n<section id=\"tables\">\n<h2>Tables</h2>\n";
    main += &html_tables(&tables::markdown(measured));
    main += "</section>\n";
    flaz_page::document("flaz beside the caches of the kernel", STYLE, &main)
}

fn chart(measured: &[Measured], saved_percent: u64) -> Option<String> {
    let lines: Vec<(usize, Vec<(usize, f64)>)> = SYSTEMS
        .iter()
        .enumerate()
        .map(|(number, system)| {
            let value = |working: u64| {
                let one = tables::zipf(measured, system, working, saved_percent)?;
                Some(one.origin_reads())
            };
            let points = WORKING_MIB
                .iter()
                .enumerate()
                .filter_map(|(place, working)| Some((place, value(*working)?)));
            (number, points.collect())
        })
        .collect();
    lines
        .iter()
        .find(|(number, points)| SYSTEMS[*number] == "flaz:lz4" && !points.is_empty())?;
    let description =
        format!("Reads of the origin for each request, data of which {saved_percent} % is saved");
    let mut drawing = Drawing::new(WIDTH, HEIGHT, &description);
    let scale = |most, from, to| Scale {
        least: 0.0,
        most,
        from,
        to,
        logarithmic: false,
    };
    let all = lines.iter().flat_map(|(_, points)| points);
    let highest = all.map(|(_, value)| *value).fold(0.0, f64::max);
    let step = round_step(highest, 5);
    let most = (highest / step).ceil() * step;
    let y = scale(most, BOTTOM, TOP);
    let x = scale((WORKING_MIB.len() - 1) as f64, LEFT + 20.0, RIGHT);
    let y_ticks: Vec<_> = ticks(most, step)
        .into_iter()
        .map(|tick| (tick, format!("{tick:.1}")))
        .collect();
    drawing.y_axis(
        scale(1.0, LEFT, RIGHT),
        y,
        &y_ticks,
        Some("origin reads a request"),
    );
    let x_ticks: Vec<_> = WORKING_MIB
        .iter()
        .enumerate()
        .map(|(place, working)| (place as f64, format!("1/{}", working / SSD_MIB)))
        .collect();
    drawing.x_axis(x, y, &x_ticks, "size of the SSD as a part of the working set");
    let mut labels = Vec::new();
    for (number, points) in &lines {
        let class = format!("c{number}");
        let places: Vec<_> = points
            .iter()
            .map(|(place, value)| (x.at(*place as f64), y.at(*value)))
            .collect();
        drawing.path(&format!("line {class}"), &places);
        for ((place, value), at) in points.iter().zip(&places) {
            let part = WORKING_MIB[*place] / SSD_MIB;
            let title = format!("{}, 1/{part}: {value:.3}", tables::title(SYSTEMS[*number]));
            drawing.spot(&class, *at, &title);
        }
        if let (Some((_, value)), Some((_, height))) = (points.last(), places.last()) {
            labels.push((*height, class, format!("{value:.2}")));
        }
    }
    drawing.labels(RIGHT + 8.0, labels, (TOP + 4.0, BOTTOM));
    Some(drawing.finish())
}

/// The tables, which begin with a title.
fn html_tables(markdown: &str) -> String {
    let mut text = String::new();
    let mut in_head = false;
    for line in markdown.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            if let Some(title) = line.strip_suffix(':') {
                let _ = writeln!(text, "<h3>{}</h3>\n<div class=\"scroll\"><table>", prose(title));
                in_head = true;
            } else if text.ends_with("</tr>\n") {
                text += "</tbody></table></div>\n";
            }
            continue;
        };
        if row.starts_with("---") {
            continue;
        }
        let element = if in_head { "th" } else { "td" };
        text += if in_head { "<thead><tr>" } else { "<tr>" };
        for cell in row.split(" | ") {
            let _ = write!(text, "<{element}>{}</{element}>", prose(cell));
        }
        text += if in_head {
            "</tr></thead><tbody>\n"
        } else {
            "</tr>\n"
        };
        in_head = false;
    }
    if text.ends_with("</tr>\n") {
        text += "</tbody></table></div>\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use flaz_page::well_formed::elements;

    use super::super::figures::read;
    use super::*;

    #[test]
    fn the_page_is_well_formed_and_has_every_figure() {
        let mut lines = Vec::new();
        for (number, system) in SYSTEMS.iter().enumerate() {
            for working in WORKING_MIB {
                lines.push(format!(
                    r#"{{"system":"{system}","mode":"write-through","ssd_mib":64,"working_mib":{working},"saved_pct":50,"phase":"zipf","requests":1000,"origin_reads":{}}}"#,
                    100 * (number + 1)
                ));
            }
        }
        let page = html(&read(&lines.join("\n")).unwrap());
        assert!(elements(&page).unwrap() > 100);
        for text in ["0.100", "0.600", "zstd:1 / better peer", "1/32: 0.500"] {
            assert!(page.contains(text), "{text}");
        }
    }
}
