package process

import (
	"context"
	"time"

	"gatehouse/tool"
)

type screenIn struct {
	ID      string `json:"id" min:"1"`
	Text    string `json:"text,omitempty" doc:"first wait until this text is on the screen"`
	Idle    int    `json:"idle_ms,omitempty" doc:"first wait until nothing was drawn for this time" min:"0" max:"5000"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds to wait" default:"30" min:"0" max:"45"`
}

type screenOut struct {
	ID     string `json:"id"`
	Screen string `json:"screen" text:"product"`
	condition
	Cols         int    `json:"cols"`
	Rows         int    `json:"rows"`
	CursorCol    int    `json:"cursorCol" doc:"from 0"`
	CursorRow    int    `json:"cursorRow" doc:"from 0"`
	CursorHidden bool   `json:"cursorHidden,omitempty"`
	FullScreen   bool   `json:"fullScreen,omitempty" doc:"a program such as an editor uses the whole screen"`
	Title        string `json:"title,omitempty"`
	TimedOut     bool   `json:"timedOut,omitempty" doc:"the wait reached its timeout"`
}

func (m *manager) screenTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_screen", Title: "Look at a terminal", Effects: tool.Reads, Handle: "id",
		Description: "Returns the screen of a process's terminal as text. It can first wait for a text on it, or " +
			"until nothing changes.",
	}, m.screen)
}

func (m *manager) screen(ctx context.Context, c *tool.Call, in screenIn) (screenOut, error) {
	r, err := m.findTerminal(c, in.ID)
	if err != nil {
		return screenOut{}, err
	}
	out := screenOut{ID: in.ID}
	if in.Text != "" || in.Idle > 0 {
		every, idle := time.Duration(0), time.Duration(in.Idle)*time.Millisecond
		if idle > 0 {
			every = max(idle/5, 5*time.Millisecond)
		}
		ok, err := r.waitUntil(ctx, time.Duration(in.Timeout)*time.Second, every, func() bool {
			r.log.mu.Lock()
			defer r.log.mu.Unlock()
			return (in.Text == "" || r.log.screen.Shows(in.Text)) && (idle == 0 || time.Since(r.log.lastWrite) >= idle)
		})
		if err != nil {
			return screenOut{}, err
		}
		out.TimedOut = !ok
	}
	out.condition = r.condition()
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	s := r.log.screen
	out.Screen, out.Title, out.FullScreen = s.String(), s.Title(), s.Alternate()
	out.Cols, out.Rows = s.Size()
	var shown bool
	out.CursorCol, out.CursorRow, shown = s.Cursor()
	out.CursorHidden = !shown
	return out, nil
}
