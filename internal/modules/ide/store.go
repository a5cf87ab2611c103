package ide

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"gatehouse/internal/files/sqlfile"
	"gatehouse/tool"
)

const schema = `CREATE TABLE sessions (id TEXT PRIMARY KEY, owner TEXT NOT NULL, made INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX sessions_by_owner ON sessions (owner, made);
CREATE TABLE messages (session TEXT NOT NULL, seq INTEGER NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL,
	at INTEGER NOT NULL, PRIMARY KEY (session, seq));
CREATE TABLE dashboard (owner TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, at INTEGER NOT NULL,
	PRIMARY KEY (owner, name));`

// session is a conversation with an agent.
type session struct {
	ID      string    `json:"id"`
	Owner   string    `json:"owner"`
	Name    string    `json:"name"`
	Agent   string    `json:"agent"`
	Dir     string    `json:"dir"`
	Remote  string    `json:"remote"` // the agent's own id
	Created time.Time `json:"created"`
	Plan    []step    `json:"plan,omitempty"`
	PlanAt  time.Time `json:"planAt,omitzero"`
}

// step is an entry of an agent's plan.
type step struct {
	Name     string `json:"name"`
	Status   string `json:"status"`
	Priority string `json:"priority,omitempty"`
}

// chatMessage is a message of a chat.
type chatMessage struct {
	Role      string    `json:"role" doc:"user, assistant, thought or tool"`
	Content   string    `json:"content"`
	Timestamp time.Time `json:"timestamp"`
	Seq       int64     `json:"seq"`
}

// store has the sessions, chats and dashboards. It is safe for concurrent use.
type store struct{ file *sqlfile.File }

func (s *store) put(ctx context.Context, x session) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	body, err := json.Marshal(x)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(
		ctx,
		`INSERT INTO sessions VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body`,
		x.ID,
		x.Owner,
		x.Created.UnixNano(),
		string(body),
	)
	return err
}

func (s *store) sessions(ctx context.Context, owner string) (all []session, err error) {
	if !s.file.Exists() {
		return nil, nil
	}
	err = s.query(ctx, func(rows *sql.Rows) error {
		var body []byte
		var x session
		if err := rows.Scan(&body); err != nil {
			return err
		}
		all = append(all, x)
		return json.Unmarshal(body, &all[len(all)-1])
	}, `SELECT body FROM sessions WHERE owner = ? ORDER BY made DESC LIMIT ?`, owner, maxSessions)
	return all, err
}

func (s *store) session(ctx context.Context, owner, id string) (x session, err error) {
	found := false
	if s.file.Exists() {
		err = s.query(ctx, func(rows *sql.Rows) error {
			var body []byte
			if err := rows.Scan(&body); err != nil {
				return err
			}
			found = true
			return json.Unmarshal(body, &x)
		}, `SELECT body FROM sessions WHERE owner = ? AND id = ?`, owner, id)
	}
	if err == nil && !found {
		err = &tool.Refusal{
			Code: tool.CodeNotFound, Message: "you have no session " + id,
			Next: "ide_session_list lists your sessions.",
		}
	}
	return x, err
}

func (s *store) query(ctx context.Context, each func(*sql.Rows) error, statement string, args ...any) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// say adds a message to a chat.
func (s *store) say(ctx context.Context, id, role, content string) error {
	db, err := s.file.DB()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(
		ctx,
		`INSERT INTO messages SELECT ?, coalesce(max(seq), 0) + 1, ?, ?, ? FROM messages WHERE session = ?`,
		id,
		role,
		content,
		time.Now().UnixNano(),
		id,
	)
	return err
}

// history returns the latest messages of a chat before a number, in their order.
func (s *store) history(ctx context.Context, id, search string, before int64, most int) (all []chatMessage, err error) {
	err = s.query(ctx, func(rows *sql.Rows) error {
		var x chatMessage
		var at int64
		if err := rows.Scan(&x.Seq, &x.Role, &x.Content, &at); err != nil {
			return err
		}
		x.Timestamp = time.Unix(0, at).UTC()
		all = append([]chatMessage{x}, all...)
		return nil
	}, `SELECT seq, role, content, at FROM messages WHERE session = ? AND seq < ? AND instr(lower(content), lower(?)) > 0
		ORDER BY seq DESC LIMIT ?`, id, before, search, most)
	return all, err
}

// count returns how many messages an owner's chats have since a time.
func (s *store) count(ctx context.Context, owner string, since time.Time) (n int, err error) {
	if !s.file.Exists() {
		return 0, nil
	}
	err = s.query(ctx, func(rows *sql.Rows) error { return rows.Scan(&n) }, `SELECT count(*) FROM messages JOIN sessions
		ON sessions.id = messages.session WHERE sessions.owner = ? AND messages.at >= ?`, owner, since.UnixNano())
	return n, err
}
