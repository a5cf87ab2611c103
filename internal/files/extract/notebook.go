package extract

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"gatehouse/internal/access/displaytext"
)

// notebook is the part of a Jupyter notebook that is read.
type notebook struct {
	Cells      []notebookCell `json:"cells"`
	Worksheets []struct {     // of version 3
		Cells []notebookCell `json:"cells"`
	} `json:"worksheets"`
	Metadata struct {
		Kernel struct {
			Language string `json:"language"`
		} `json:"kernelspec"`
		Language struct {
			Name string `json:"name"`
		} `json:"language_info"`
	} `json:"metadata"`
}

type notebookCell struct {
	Type    string       `json:"cell_type"`
	Source  lines        `json:"source"`
	Input   lines        `json:"input"` // the source of version 3, which has headings as cells
	Level   int          `json:"level"`
	Outputs []cellOutput `json:"outputs"`
}

type cellOutput struct {
	Text  lines                      `json:"text"`
	Data  map[string]json.RawMessage `json:"data"`
	Name  string                     `json:"ename"`
	Value string                     `json:"evalue"`
}

// lines is a text that is one string or a list of strings in JSON.
type lines string

func (l *lines) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = lines(one)
		return nil
	}
	var many []string
	if err := json.Unmarshal(b, &many); err != nil {
		return err
	}
	*l = lines(strings.Join(many, ""))
	return nil
}

// mostOutput limits the bytes of one output of a cell.
const mostOutput = 2000

// fromNotebook writes the cells as Markdown: fenced code, then its outputs.
func fromNotebook(w *writer, r io.Reader) error {
	var n notebook
	if err := json.NewDecoder(r).Decode(&n); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the notebook is cut off")
		}
		return fmt.Errorf("the notebook is damaged: %w", err)
	}
	language := n.Metadata.Language.Name
	if language == "" {
		language = n.Metadata.Kernel.Language
	}
	for _, s := range n.Worksheets {
		n.Cells = append(n.Cells, s.Cells...)
	}
	for i, c := range n.Cells {
		w.paragraph()
		head := fmt.Sprintf("[cell %d, %s]\n", i+1, c.Type)
		text := string(c.Source + c.Input)
		switch c.Type {
		case "heading":
			text = strings.Repeat("#", min(max(c.Level, 1), 6)) + " " + text
		case "code":
			text = "```" + language + "\n" + strings.TrimSuffix(text, "\n") + "\n```"
		}
		if err := w.raw(head + text); err != nil {
			return err
		}
		for _, o := range c.Outputs {
			w.newLine()
			if err := w.raw(o.formatCell()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *cellOutput) formatCell() string {
	text := string(o.Text)
	if o.Name != "" {
		text = o.Name + ": " + o.Value
	}
	var plain lines
	if text == "" && json.Unmarshal(o.Data["text/plain"], &plain) == nil {
		text = string(plain)
	}
	for kind, data := range o.Data {
		if strings.HasPrefix(kind, "image/") {
			text += fmt.Sprintf(" [%s, %d bytes]", kind, len(data))
		}
	}
	text = displaytext.Cut(text, mostOutput, fmt.Sprintf("\n[%d bytes more]", len(text)-mostOutput))
	return "Output: " + strings.TrimRight(text, "\n")
}
