package protocol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/seal"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

func (p *peer) task(method, id string, more ...string) answer {
	p.t.Helper()
	return p.modern(tasksCaps, method, join(append([]string{`"taskId":"` + id + `"`}, more...)...))
}

func TestTaskIsThereBeforeItIsAnswered(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		got := p.modern(tasksCaps, "tools/call", `"name":"t_work"`)
		for name, want := range map[string]string{"resultType": "task", "status": "working", "ttlMs": "3600000",
			"pollIntervalMs": "1000",
			"createdAt":      "2000-01-01T00:00:00.000Z", "lastUpdatedAt": "2000-01-01T00:00:00.000Z"} {
			equal(t, name, got.get(name), want)
		}
		for _, none := range []string{"task", "result", "error", "inputRequests", "requestState", "ttl",
			"pollInterval"} {
			equal(t, none, got.get(none), "")
		}
		id := got.get("taskId")
		equal(t, "at once", p.task("tasks/get", id).get("status"), "working")
		h.clock <- struct{}{}
		synctest.Wait()
		done := p.task("tasks/get", id)
		equal(t, "status", done.get("status"), "completed")
		equal(t, "result", done.get("result.structuredContent"), `{"said":"done"}`)
		lacks(t, done.raw, "requestState", "related-task")
		equal(
			t,
			"a cancel comes too late and is acknowledged",
			string(p.task("tasks/cancel", id).get("resultType")),
			"complete",
		)
		equal(t, "status", p.task("tasks/get", id).get("status"), "completed")
	})
}

// A tool's own failure completes its task; a protocol error fails it.
func TestHowTasksEnd(t *testing.T) {
	for name, want := range map[string][]string{
		"t_refuse":   {`"status":"completed"`, `"isError":true`, "no such thing"},
		"t_wire":     {`"status":"failed"`, `"error":{"code":4711,"message":"wires crossed","data":{"a":1}}`},
		"t_panic":    {`"status":"failed"`, `"error":{"code":-32603,"message":"internal error, see `},
		"t_stubborn": {`"status":"completed"`, `"isError":true`, "timeout: no result within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
				for _, made := range h.tools() {
					if made.Name == name {
						made.Name, made.Task = "t_job", tool.TaskAlways
						h.offer(made)
					}
				}
				p := h.dial(t)
				id := p.modern(tasksCaps, "tools/call", `"name":"t_job"`).get("taskId")
				time.Sleep(5 * time.Second)
				got := p.task("tasks/get", id)
				has(t, got.raw, want...)
				if strings.Contains(want[0], "failed") {
					lacks(t, got.raw, `"result":{"content"`)
				}
				if name == "t_stubborn" {
					equal(t, "slots in use", h.Calls.Running(), 1)
					h.clock <- struct{}{}
				}
			})
		})
	}
}

func TestInputInsideATask(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		id := p.modern(tasksCaps, "tools/call", `"name":"t_confirm"`).get("taskId")
		synctest.Wait()
		got := p.task("tasks/get", id)
		equal(t, "status", got.get("status"), "input_required")
		equal(t, "asked", got.asked(), "one two")
		update := func(answers string) answer { return p.task("tasks/update", id, `"inputResponses":{`+answers+`}`) }
		for _, ignored := range []string{``, `"three":{}`, `"=one":1`} {
			ack := update(ignored)
			equal(t, "ack", ack.get("resultType"), "complete")
			for _, none := range []string{"taskId", "status", "inputRequests"} {
				equal(t, none, ack.get(none), "")
			}
			equal(t, "still", p.task("tasks/get", id).asked(), "one two")
		}
		update(`"one":` + named("Ada"))
		equal(t, "the very next look", p.task("tasks/get", id).asked(), "two")
		update(`"two":` + named("B")) // too short
		synctest.Wait()
		equal(t, "asked again", p.task("tasks/get", id).asked(), "two")
		update(`"two":` + named("Bob"))
		synctest.Wait()
		equal(t, "result", p.task("tasks/get", id).get("result.structuredContent.said"), "Ada Bob")
		equal(t, "runs", h.history(), "confirm confirm confirm")
		for _, bad := range []string{`5`, `null`, `[]`} {
			equal(t, bad, p.task("tasks/update", id, `"inputResponses":`+bad).code(), -32602)
		}
	})
}

func TestTaskAsksWithinItsLimits(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		endless := h.endless()
		endless.Name, endless.Task = "t_job", tool.TaskAlways
		h.offer(endless)
		p := h.dial(t)
		id := p.modern(tasksCaps, "tools/call", `"name":"t_job"`).get("taskId")
		n := 0
		for ; n < 20; n++ {
			synctest.Wait()
			if p.task("tasks/get", id).get("status") != "input_required" {
				break
			}
			p.task("tasks/update", id, fmt.Sprintf(`"inputResponses":{"q%d":%s}`, n, named("Ada")))
		}
		equal(t, "rounds", n, 10)
		has(t, p.task("tasks/get", id).raw, `"status":"completed"`, "too_many_rounds")
	})
}

// A call that takes long becomes a task for clients that can follow one; its later progress is reported
// there.
func TestPromotion(t *testing.T) {
	visit(t, hosttest.Options{Promote: 5 * time.Second}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		began := time.Now()
		got := p.modern(tasksCaps, "tools/call", `"name":"t_slow"`)
		equal(t, "after", time.Since(began), 5*time.Second)
		equal(t, "kind", got.get("resultType"), "task")
		h.clock <- struct{}{}
		synctest.Wait()
		equal(t, "said", p.task("tasks/get", got.get("taskId")).get("result.structuredContent.said"), "done")

		h.clock <- struct{}{}
		equal(t, "a quick one", p.modern(tasksCaps, "tools/call", `"name":"t_slow"`).get("resultType"), "complete")
		never := p.startModern(tasksCaps, "tools/call", `"name":"t_wait"`)
		time.Sleep(10 * time.Second)
		p.quiet()
		h.clock <- struct{}{}
		equal(t, "one that never is", p.await(never).get("resultType"), "complete")

		gone := p.modern(tasksCaps, "tools/call", `"name":"t_slow"`).get("taskId")
		p.task("tasks/cancel", gone)
		synctest.Wait()
		equal(t, "cancelled", p.task("tasks/get", gone).get("status"), "cancelled")
		has(t, h.history(), "t_slow stopped: the job was cancelled")
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// A call that ends at the moment at which it would become a task is one or the other, and its outcome
// is available either way.
func TestPromotionAtTheLastMoment(t *testing.T) {
	visit(t, hosttest.Options{Promote: 5 * time.Second}, func(t *testing.T, h *testHost) {
		h.offer(tool.New(tool.Def{Name: "t_sleep", Description: "Sleeps.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
				time.Sleep(5 * time.Second)
				return echoOut{"rested"}, nil
			}))
		p := h.dial(t)
		for range 100 {
			got := p.modern(tasksCaps, "tools/call", `"name":"t_sleep"`)
			if got.get("resultType") == "task" {
				synctest.Wait()
				got = p.task("tasks/get", got.get("taskId"))
				equal(t, "status", got.get("status"), "completed")
				equal(t, "said", got.get("result.structuredContent.said"), "rested")
				continue
			}
			equal(t, "said", got.get("structuredContent.said"), "rested")
		}
		p.quiet()
		equal(t, "slots in use", h.Calls.Running(), 0)
	})
}

// The same at a deadline that a handler ignores.
func TestAnswerAtTheLastMoment(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(tool.New(tool.Def{Name: "t_sleep", Description: "Sleeps.", Effects: tool.Reads, Timeout: time.Second},
			func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
				time.Sleep(1250 * time.Millisecond) // with the rest of the grace period
				return echoOut{"rested"}, nil
			}))
		p := h.legacy(t, "2025-11-25", "")
		for range 100 {
			p.call("t_sleep", "{}")
			p.quiet()
		}
		equal(t, "slots in use", h.Calls.Running(), 0)
		equal(t, "overdue", h.Calls.Overdue(), 0)
	})
}

func TestDetachSendsTheClientAway(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		got := p.modern(tasksCaps, "tools/call", `"name":"t_detach"`)
		equal(t, "kind", got.get("resultType"), "task")
		synctest.Wait()
		equal(t, "note", p.task("tasks/get", got.get("taskId")).get("statusMessage"), "half way")
		h.clock <- struct{}{}
		synctest.Wait()
		equal(t, "said", p.task("tasks/get", got.get("taskId")).get("result.structuredContent.said"), "detached")

		h.clock <- struct{}{}
		equal(
			t,
			"a client without tasks waits",
			p.modern("", "tools/call", `"name":"t_detach"`).text(),
			`{"said":"detached"}`,
		)
		k := h.post(
			t,
			headersOf("tools/call", "t_echo"),
			body("tools/call", `"name":"t_echo","arguments":{"text":"x"}`),
		)
		equal(t, "detached", k.detached, 0)
	})
}

// First a question, then a task: the answers are passed on.
func TestQuestionAndThenATask(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		h.offer(tool.New(tool.Def{Name: "t_first", Description: "Asks, then works.", Effects: tool.Reads},
			func(ctx context.Context, c *tool.Call, _ nothing) (echoOut, error) {
				a, err := c.Peer.Ask(tool.Elicit("name", "Who?", nameForm))
				if err != nil {
					return echoOut{}, err
				}
				tool.Detach(ctx, c)
				b, err := c.Peer.Ask(tool.Elicit("more", "And?", nameForm))
				if err != nil {
					return echoOut{}, err
				}
				one, _ := elicited(a, "name")
				two, _ := elicited(b, "more")
				return echoOut{one + " " + two + " " + c.ID}, nil
			}))
		p := h.dial(t)
		first := p.modern(tasksCaps, "tools/call", `"name":"t_first"`)
		equal(t, "asked", first.asked(), "name")
		equal(t, "and no task", first.get("taskId"), "")
		second := p.modern(
			tasksCaps,
			"tools/call",
			`"name":"t_first","requestState":"`+first.get(
				"requestState",
			)+`","inputResponses":{"name":`+named(
				"Ada",
			)+`}`,
		)
		equal(t, "kind", second.get("resultType"), "task")
		lacks(t, second.raw, "requestState", "inputRequests")
		id := second.get("taskId")
		synctest.Wait()
		equal(t, "asked", p.task("tasks/get", id).asked(), "more")
		p.task("tasks/update", id, `"inputResponses":{"more":`+named("Bob")+`}`)
		synctest.Wait()
		has(t, p.task("tasks/get", id).get("result.structuredContent.said"), "Ada Bob call_")
	})
}

func TestTasksOfOthersAreNotThere(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p, other := h.dial(t), h.dialAs(t, "other")
		id := p.modern(tasksCaps, "tools/call", `"name":"t_confirm"`).get("taskId")
		synctest.Wait()
		for _, m := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
			got := other.task(m, id, `"inputResponses":{"one":`+named("Eve")+`,"two":`+named("Eve")+`}`)
			none := other.task(m, "none", `"inputResponses":{}`)
			equal(t, m, got.code(), -32602)
			equal(t, m, got.Error.Message, none.Error.Message)
		}
		q := h.dialAs(t, "other")
		q.hello("2025-11-25", "")
		equal(t, "list", q.ask("tasks/list", "").get("tasks"), "[]")
		equal(t, "result", q.ask("tasks/result", `"taskId":"`+id+`"`).code(), -32602)
		equal(t, "untouched", p.task("tasks/get", id).asked(), "one two")
	})
}

func TestTimeToLive(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-11-25", "")
		id := p.ask("tools/call", `"name":"t_work","task":{"ttl":120000}`).get("task.taskId")
		h.clock <- struct{}{}
		time.Sleep(110 * time.Second)
		p.rest()
		got := p.ask("tasks/get", `"taskId":"`+id+`"`)
		equal(t, "status", got.get("status"), "completed")
		equal(t, "ttl", got.get("ttl"), "120000")
		time.Sleep(2 * time.Minute)
		equal(t, "and then", p.ask("tasks/get", `"taskId":"`+id+`"`).code(), -32602)
	})
}

// A job that waits for an answer exists after a restart, and continues after the answer; a job that was
// running reports that it was interrupted.
func TestTasksAfterARestart(t *testing.T) {
	dir := t.TempDir()
	ring := seal.Ephemeral()
	o := hosttest.Options{JobsFile: filepath.Join(dir, "jobs.db"), Seal: ring}
	var waiting, working, state string
	visit(t, o, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		waiting = p.modern(tasksCaps, "tools/call", `"name":"t_confirm"`).get("taskId")
		working = p.modern(tasksCaps, "tools/call", `"name":"t_work"`).get("taskId")
		state = p.modern(tasksCaps, "tools/call", `"name":"t_ask"`).get("requestState")
		synctest.Wait()
		p.task("tasks/update", waiting, `"inputResponses":{"one":`+named("Ada")+`}`)
	})
	visit(t, o, func(t *testing.T, h *testHost) {
		p := h.dial(t)
		equal(t, "asked", p.task("tasks/get", waiting).asked(), "two")
		p.task("tasks/update", waiting, `"inputResponses":{"two":`+named("Bob")+`}`)
		synctest.Wait()
		equal(t, "said", p.task("tasks/get", waiting).get("result.structuredContent.said"), "Ada Bob")
		has(t, p.task("tasks/get", working).raw, `"status":"failed"`, "the host stopped while this job ran")
		got := p.modern(
			canElicit,
			"tools/call",
			`"name":"t_ask","requestState":"`+state+`","inputResponses":{"name":`+named("Eve")+`}`,
		)
		equal(t, "a sealed state as well", got.text(), `{"said":"Eve"}`)
	})
}

// A client without tasks gets a job before it gives up.
func TestHandOver(t *testing.T) {
	visit(t, hosttest.Options{Silence: 5 * time.Second, JobTools: true}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-06-18", canElicit)
		began := time.Now()
		got := p.call("t_slow", "{}")
		equal(t, "after", time.Since(began), 5*time.Second)
		job := got.get("_meta.gatehouse/job")
		has(t, got.text(), "still working, as job "+job, `Call job_wait with {"id":"`+job+`"}`)
		has(t, p.call("job_list", "{}").text(), job, `"status":"working"`)
		wait := p.start("tools/call", `"name":"job_wait","arguments":{"id":"`+job+`"}`)
		p.quiet()
		h.clock <- struct{}{}
		equal(t, "said", p.await(wait).text(), `{"said":"done"}`)
		equal(t, "and again", p.call("job_wait", `{"id":"`+job+`"}`).text(), `{"said":"done"}`)

		never := p.start("tools/call", `"name":"t_wait"`)
		time.Sleep(10 * time.Second)
		p.quiet() // it never becomes a job
		h.clock <- struct{}{}
		p.await(never)
	})
	visit(t, hosttest.Options{Silence: 5 * time.Second}, func(t *testing.T, h *testHost) {
		p := h.legacy(t, "2025-06-18", "")
		id := p.start("tools/call", `"name":"t_slow"`)
		time.Sleep(20 * time.Second)
		p.quiet() // the view has no tool to wait with
		h.clock <- struct{}{}
		equal(t, "said", p.await(id).text(), `{"said":"done"}`)
	})
}

// A client with a progress token gets a sign that its call continues, also if the handler has reported
// progress before.
func TestSignsOfLife(t *testing.T) {
	visit(t, hosttest.Options{Silence: 4 * time.Second, JobTools: true}, func(t *testing.T, h *testHost) {
		h.offer(tool.New(tool.Def{Name: "t_half", Description: "Gets half way.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
				c.Peer.Progress(1e9, 2e9, "half way")
				<-h.clock
				c.Peer.Progress(1e9+1, 2e9, "further")
				return echoOut{"done"}, nil
			}))
		p := h.legacy(t, "2025-06-18", "")
		id := p.start("tools/call", `"_meta":{"progressToken":"p"},"name":"t_half"`)
		time.Sleep(9 * time.Second)
		h.clock <- struct{}{}
		got := p.await(id)
		all := progress(t, got.notes)
		equal(t, "signs", len(all), 5) // 0 s, 4 s, 6 s, 8 s, 9 s
		for i := range all[1:] {
			if all[i+1] <= all[i] {
				t.Errorf("%v after %v", all[i+1], all[i])
			}
		}
		equal(t, "said", got.text(), `{"said":"done"}`)
	})
}

// A module can start a job itself; it asks like a task.
func TestJobsOfModules(t *testing.T) {
	visit(t, hosttest.Options{JobTools: true}, func(t *testing.T, h *testHost) {
		h.offer(tool.New(tool.Def{Name: "t_start", Description: "Starts a job.", Effects: tool.Reads},
			func(_ context.Context, c *tool.Call, _ nothing) (echoOut, error) {
				id, err := h.deps.Job(c, "a job", func(_ context.Context, c *tool.Call) (tool.Result, error) {
					a, err := c.Peer.Ask(tool.Elicit("name", "Who?", nameForm))
					if err != nil {
						return tool.Result{}, err
					}
					name, err := elicited(a, "name")
					return tool.Result{Structured: echoOut{name}}, err
				})
				return echoOut{id}, err
			}))
		p := h.legacy(t, "2025-06-18", canElicit)
		gone := p.call("t_start", "{}").get("structuredContent.said")
		synctest.Wait()
		p.call("job_cancel", `{"id":"`+gone+`"}`)
		has(t, p.call("job_list", "{}").text(), `"status":"cancelled"`)
		job := p.call("t_start", "{}").get("structuredContent.said")
		wait := p.start("tools/call", `"name":"job_wait","arguments":{"id":"`+job+`"}`)
		p.reply(p.question(), named("Ada"))
		has(t, p.await(wait).raw, `"status":"working"`)
		equal(t, "said", p.call("job_wait", `{"id":"`+job+`"}`).text(), `{"said":"Ada"}`)
	})
}

// Running jobs are divided among principals, whatever contexts they come in.
//
//redteam:attack No principal takes the host from the others: one principal starts jobs without end, each in another context
func TestRunningJobsAreDivided(t *testing.T) {
	shares := limit.NewShares(limit.Resource{Name: "running jobs", Total: 4, Kept: -1})
	visit(t, hosttest.Options{Working: shares}, func(t *testing.T, h *testHost) {
		end := make(chan struct{})
		work := func(ctx context.Context, _ map[string]json.RawMessage, _ []byte, _ bus.Notes) (bus.Outcome, error) {
			select {
			case <-end:
			case <-ctx.Done():
			}
			return bus.Outcome{}, nil
		}
		start := func(principal, in string) error {
			_, err := h.Engine.StartJob(tool.Caller{Principal: principal, Owner: principal + " in " + in}, "work", work, nil)
			return err
		}
		if err := errors.Join(start("ann", "a"), start("ann", "b")); err != nil {
			t.Fatal(err)
		}
		if busy := (*limit.Busy)(nil); !errors.As(start("ann", "c"), &busy) {
			t.Error("one principal gets more than it leaves free")
		}
		if err := start("bob", "a"); err != nil {
			t.Errorf("another principal: %v", err)
		}
		close(end)
		synctest.Wait()
		if used, full := shares.Usage(); used != 0 || full != 1 {
			t.Errorf("%d are in use at the end, %d were refused", used, full)
		}
		if err := start("ann", "c"); err != nil {
			t.Error(err)
		}
	})
}
