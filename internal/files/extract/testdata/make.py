# Writes the documents of this folder with the programs that people use for them. It needs, from PyPI: python-docx 1.2.0,
# python-pptx 1.0.2, openpyxl 3.1.5, EbookLib 0.20, reportlab 5.1.0, pypdf 7.1.1 with cryptography, typst; and chromium.
# Run it in this folder, then go test -run TestRealDocuments -update in the one above.
import datetime, json, subprocess, email.policy
from email.message import EmailMessage

import docx, openpyxl, typst
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from ebooklib import epub
from openpyxl.comments import Comment
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches
from pypdf import PdfWriter
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfgen import canvas
from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Table

TEXT = "The keeper of the lighthouse reads the barometer twice a day and writes what it says into the book. "


def word():
    d = docx.Document()
    d.add_heading("Handbook of the Lighthouse", 0)
    d.add_heading("Duties", 1)
    p = d.add_paragraph("The keeper lights the lamp at ")
    dusk = p.add_run("dusk")
    p.add_run(" and reads the barometer. See ")
    link, run, text = OxmlElement("w:hyperlink"), OxmlElement("w:r"), OxmlElement("w:t")
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/hyperlink"
    link.set(qn("r:id"), p.part.relate_to("https://example.org/tides", kind, is_external=True))
    text.text = "the tide tables"
    run.append(text), link.append(run), p._p.append(link)
    p.add_run(".")
    d.add_comment(runs=dusk, text="Or at sunset?", author="Ann", initials="A")
    d.add_heading("Stores", 2)
    for style, item in [("List Bullet", "Oil, two barrels"), ("List Bullet 2", "Wicks"), ("List Number", "Fill the tank"),
                        ("List Number", "Trim the wick")]:
        d.add_paragraph(item, style=style)
    t = d.add_table(rows=2, cols=3)
    for i, row in enumerate([["Item", "Amount", "Note"], ["Oil", "12 l", "comes\nmonthly"]]):
        for j, x in enumerate(row):
            t.cell(i, j).text = x
    t.cell(1, 2).add_paragraph("by boat")
    d.sections[0].header.paragraphs[0].text = "Harbour Board"
    d.add_page_break()
    d.add_heading("Storms", 1)
    d.add_paragraph("Text of the second page.")
    d.save("handbook.docx")


def slides():
    p = Presentation()
    s = p.slides.add_slide(p.slide_layouts[0])
    s.shapes.title.text, s.placeholders[1].text = "Tides and Lamps", "A talk"
    s = p.slides.add_slide(p.slide_layouts[1])
    s.shapes.title.text = "Equipment"
    f = s.placeholders[1].text_frame
    f.text = "Lamp"
    more = f.add_paragraph()
    more.text, more.level = "Fresnel lens", 1
    run = f.add_paragraph().add_run()
    run.text, run.hyperlink.address = "catalogue", "https://example.org/cat"
    s.notes_slide.notes_text_frame.text = "Mention the accident of 1911."
    s = p.slides.add_slide(p.slide_layouts[6])
    t = s.shapes.add_table(2, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    for i, x in enumerate(["Year", "Wrecks", "1911", "3"]):
        t.cell(i // 2, i % 2).text = x
    c = CategoryChartData()
    c.categories = ["spring", "autumn"]
    c.add_series("storms", (2, 7))
    s.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Inches(1), Inches(4), Inches(4), Inches(2), c)
    box = s.shapes.add_group_shape().shapes.add_textbox(0, 0, Inches(1), Inches(1))
    box.text_frame.text = "grouped words"
    p.save("talk.pptx")


def sheets():
    w = openpyxl.Workbook()
    s = w.active
    s.title = "Prices"
    s.append(["Item", "Price", "Since", "Share"])
    s.append(["Bolt", 1.5, datetime.date(2024, 3, 15), 0.25])
    s.append(["Nut", 0.1, datetime.datetime(2025, 1, 2, 3, 4, 5)])
    s["D2"].number_format = "0.0%"
    s["A4"], s["B4"], s["C4"] = "Total", "=SUM(B2:B3)", datetime.time(13, 30)
    s["A2"].comment = Comment("only in steel", "Ann")
    s["A3"].hyperlink = "https://example.org/nut"
    s.merge_cells("A6:C6")
    s["A6"], s["A7"], s["B7"] = "merged title", True, "two\nlines"
    w.create_sheet("Empty")
    h = w.create_sheet("Hidden")
    h["B5"], h.sheet_state = "far", "hidden"
    w.save("prices.xlsx")


def book():
    b = epub.EpubBook()
    b.set_title("The Book of Storms")
    b.add_author("Ann Other")
    for i, text in enumerate(["<h1>Storms</h1><p>The storm of 1911. <a href='c2.xhtml#x'>next</a></p><h2>Damage</h2>"
                              "<p>Three masts&nbsp;fell.</p><table><tr><td>a</td><td>b</td></tr></table>",
                              "<h1>Calm</h1><p>Quiet <i>water</i>.</p><ol><li>one</li><li>two</li></ol>"]):
        c = epub.EpubHtml(title="Chapter", file_name=f"c{i + 1}.xhtml", lang="en")
        c.content = text
        b.add_item(c)
        b.toc.append(c)
        b.spine.append(c)
    b.add_item(epub.EpubNcx())
    epub.write_epub("storms.epub", b)


def notebook():
    json.dump({"metadata": {"name": ""}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": [
        {"cell_type": "heading", "level": 2, "source": ["Tides"]},
        {"cell_type": "code", "language": "python", "input": ["print 1"],
         "outputs": [{"output_type": "stream", "text": ["1\n"]}]}]}]}, open("version3.ipynb", "w"))


def mail(name, subject, text, **how):
    m = EmailMessage()
    m["Subject"], m["From"], m["To"] = subject, "Jörg Ähre <j@example.org>", "a@example.org"
    m.set_content(text, **how)
    return name, m


def mails():
    name, m = mail("forwarded.eml", "Sturmwarnung für Möwen – heute",
                   "Guten Tag,\n\ndie Flut kommt um neun Uhr. " + "Ein langer Satz über das Wetter. " * 4 + "\n")
    m.add_alternative("<p>not this</p>", subtype="html")
    m.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="Gezeiten-Übersicht.pdf")
    m.add_attachment("a,b\n1,2\n", subtype="csv", filename="x.csv")
    m.add_attachment(mail("", "Innerer Brief", "Inhalt innen €")[1])
    _, blank = mail("blank.eml", "html alone", "\n")
    blank.add_alternative("<p>only here, with <img src='cid:1' alt='the lamp'></p>", subtype="html")
    for name, m in [(name, m), ("blank.eml", blank),
                    mail("koi8.eml", "кодировка", "Привет, смотритель маяка", charset="koi8-r"),
                    mail("windows.eml", "quotes", "“smart” – €5", charset="windows-1252", cte="quoted-printable"),
                    mail("japan.eml", "日本", "灯台の光", charset="iso-2022-jp")]:
        del m["MIME-Version"]
        m["MIME-Version"] = "1.0"
        b = m.as_bytes(policy=email.policy.SMTP)
        open(name, "wb").write(b)


def pages():
    open("latin1.html", "wb").write(('<html><head><meta charset="iso-8859-1"><title>Möwe</title></head><body><h1>Flügel</h1>'
                                     '<p>grün und “groß”</p></body></html>').encode("windows-1252"))


def pdfs():
    st = getSampleStyleSheet()
    SimpleDocTemplate("report.pdf").build([
        Paragraph("Duties of the keeper", st["Heading1"]), Paragraph(TEXT * 6, st["BodyText"]),
        Paragraph("Stores", st["Heading2"]), Table([["Item", "Amount"], ["Oil", "12 l"]]), PageBreak(),
        Paragraph("Second page", st["Heading1"]), Paragraph("Café €5 “quoted” – dash", st["BodyText"])])
    c = canvas.Canvas("form.pdf")
    c.beginForm("x"), c.drawString(72, 650, "words in a form"), c.endForm()
    c.drawString(72, 700, "before"), c.doForm("x"), c.showPage(), c.save()
    c = canvas.Canvas("glyphs.pdf")
    t = c.beginText(72, 700)
    t.setFont("Times-Roman", 11), t.setCharSpace(0.2), t.textLine("spaced letters in a line"), c.drawText(t)
    x = 72
    for letter in "one glyph at a time":
        c.drawString(x, 650, letter)
        x += pdfmetrics.stringWidth(letter, "Helvetica", 12)
    c.showPage(), c.save()
    for name, user, how in [("aes128", "", "AES-128"), ("aes256", "", "AES-256"), ("password", "secret", "RC4-128")]:
        w = PdfWriter(clone_from="report.pdf")
        w.encrypt(user, "owner", algorithm=how)
        w.write(name + ".pdf")
    open("page.typ", "w").write("#set page(columns: 2, height: 10cm)\n= Lighthouse handbook\nThe keeper's #emph[office] is "
                                "efficient; the flow of fluff affects shelf life. Größe, naïve façade. #lorem(40)\n== Stores\n"
                                "#table(columns: 2)[Item][Amount][Oil][12 l]\nA formula $x^2$ and a note#footnote[Seen in 1911.].\n")
    typst.compile("page.typ", output="typst.pdf")
    open("page.html", "w").write(
        "<!doctype html><meta charset=utf-8><h1>Handbook of the lighthouse</h1><p>The keeper’s office is efficient; the flow "
        "affects shelf life. Größe, Ωμέγα, привет.</p><h2>Stores</h2><table border=1><tr><th>Item<th>Amount<tr><td>Oil<td>12 l"
        "<tr><td>Wicks<td>40</table><div style='columns:2'><p>LEFT " + TEXT + "<p>RIGHT " + TEXT + "</div><p>The end.")
    subprocess.run(["chromium", "--headless", "--no-sandbox", "--print-to-pdf=chromium.pdf", "--no-pdf-header-footer",
                    "page.html"], check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "page.typ", "page.html"], check=True)


for f in [word, slides, sheets, book, notebook, mails, pages, pdfs]:
    f()
